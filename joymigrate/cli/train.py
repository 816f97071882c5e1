"""Train a model from a job file, on a GPU, another accelerator or the CPU; init, status."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli import _train_models, _train_more, _train_samples, _train_tasks
from joymigrate.cli._groups import group
from joymigrate.cli._options import spread
from joymigrate.cli._train_extra import need_extra
from joymigrate.cli._train_start import StartOptions
from joymigrate.errors import Exit, JoyError

NEEDS = {
    "JOB.yaml": ("extra:train",),
    "export": ("extra:train",),
    "show": ("extra:train",),
    "evaluate": ("extra:train",),
    "predict": ("extra:train",),
    "models": ("extra:train",),
    "generate": ("extra:rec",),
    "histories": ("extra:rec",),
    "versions": ("extra:rec",),
    "ids": ("extra:rec",),
}

app = group("Train a model from a job file; init, status, export.", default=True)


@app.command("default", hidden=True)
@spread
def train(
    job: Path = typer.Argument(..., help="The job file, or one of LLaMA-Factory (YAML)."),
    *,
    start: StartOptions,
    engine: str | None = typer.Option(
        None,
        "--engine",
        help="Let another trainer run the job: swift, llamafactory, trl, verl.",
    ),
    render: bool = typer.Option(False, "--render", help="With --engine: show, don't run."),
) -> int:
    """Train as the job file says; the same command continues a run that stopped."""
    need_extra()
    from joymigrate.cli._output import talk
    from joymigrate.run.train import job as jobs
    from joymigrate.run.train import launch

    tell = (lambda line: None) if start.quiet else lambda line: talk([line])
    loaded = jobs.load(job, start.wishes(), tell)
    if engine is not None:
        return _train_more.elsewhere(loaded, engine, show=render)
    return launch.launch(loaded, start.launch_options(Path.cwd()), tell)


@app.command("init")
def init(
    path: Path = typer.Argument(Path("job.yaml"), help="Where to write the job file."),
    model: str | None = typer.Option(None, "--model", help="A local model folder."),
    data: str | None = typer.Option(None, "--data", help="A data file."),
    task: str | None = typer.Option(None, "--task", help="The task."),
    force: bool = typer.Option(False, "--force", help="Replace the file if it exists."),
) -> int:
    """Write a commented job file."""
    from joymigrate.cli._output import emit, talk
    from joymigrate.run.train import tasks, template

    if path.exists() and not force:
        raise JoyError("the file exists", where=str(path), help="--force replaces it")
    if task is not None:
        tasks.find(task)
    values: dict[str, object] = {}
    if model is not None:
        values["model"] = {"path": model}
    if data is not None:
        values["data"] = {"train": data}
    if task is not None:
        values["task"] = task
    emit(template.render(values), path)
    talk([f"wrote {path}; joymigrate train {path} starts it"])
    return Exit.OK


@app.command("status")
def status(
    folders: list[Path] = typer.Argument(None, help="Run folders, or folders of them (runs/)."),
    plot: bool = typer.Option(False, "--plot", help="Draw the loss."),
    form: str | None = typer.Option(
        None, "--format", help="text, json, svg or html; the metrics as csv or parquet."
    ),
    output: Path | None = typer.Option(None, "-o", "--output", help="Write to a file."),
) -> int:
    """Show how runs stand; `--plot` draws the loss in the terminal, `-o loss.svg` as a picture."""
    from joymigrate.cli._output import emit, one_of
    from joymigrate.report import renderers, tables
    from joymigrate.report import train as reports
    from joymigrate.run.train.status import runs_below
    from joymigrate.run.train.status import status as status_of

    kinds = ("text", "json", "svg", "html", *tables.FORMATS)
    suffix = output.suffix.lstrip(".") if output is not None else ""
    chosen = one_of(form or (suffix if suffix in kinds else "text"), kinds, "--format")
    runs = [status_of(run) for folder in folders or [Path("runs")] for run in runs_below(folder)]
    if chosen in tables.FORMATS:
        steps = [{"run": str(one.path), **line} for one in runs for line in one.metrics]
        tables.write(tables.frame(steps, ("run", "step")), chosen, output)
        return Exit.OK
    if chosen in ("svg", "html"):
        if len(runs) != 1:
            raise JoyError(f"{chosen} shows one run, got {len(runs)}", help="name one run folder")
        emit(
            reports.svg(runs[0])
            if chosen == "svg"
            else renderers.render(reports.describe(runs[0]), "html"),
            output,
        )
        return Exit.OK
    if chosen == "json":
        emit(reports.as_json(runs), output)
        return Exit.OK
    parts = [reports.text([run]) + (reports.terminal_curve(run) if plot else "") for run in runs]
    emit("".join(parts), output)
    return Exit.OK


@app.command("export")
def export(
    run: Path = typer.Argument(..., help="The run folder."),
    output: Path | None = typer.Option(None, "-o", "--output", help="Folder (default: RUN/model)."),
    step: int | None = typer.Option(None, "--step", help="Which checkpoint (default: the newest)."),
    force: bool = typer.Option(False, "--force", help="Replace a folder that is not empty."),
) -> int:
    """Write a checkpoint as a model folder (config, safetensors, tokenizer)."""
    need_extra()
    from joymigrate.run.train.export import export as write
    from joymigrate.run.train.run_folder import MODEL, RunFolder

    print(write(RunFolder(run), output or run / MODEL, step, force=force))
    return Exit.OK


_train_tasks.register(app)
_train_models.register(app)
_train_more.register(app)
_train_samples.register(app)
