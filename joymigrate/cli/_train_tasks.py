"""`train show`, `evaluate`, `predict`, `labelstudio`: what can be learned, and what was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from joymigrate.cli._answers import Answer, answers, check_format, format_option, write_answer
from joymigrate.errors import Exit, JoyError

if TYPE_CHECKING:
    from joymigrate.run.train.evaluate import EvaluateOptions


def register(app: typer.Typer) -> None:
    """Add the commands to `train`."""
    app.command("show")(show)
    app.command("evaluate")(evaluate)
    app.command("predict")(predict)
    app.command("labelstudio")(labelstudio)


TARGET = typer.Argument(..., help="A run folder, or a model folder with --job.")
DATA = typer.Option([], "--data", help="Data files (default: data.eval of the job).")
JOB = typer.Option(None, "--job", help="The job file, for a model folder.")
OUTPUT = typer.Option(None, "-o", "--output", help="Write samples (JSONL) to a file.")
BATCH = typer.Option(8, "--batch", min=1, help="Samples of one pass.")
LIMIT = typer.Option(None, "--limit", min=1, help="Records to look at, at most.")
STEP = typer.Option(None, "--step", help="Which checkpoint (default: the newest).")
DEVICE = typer.Option(None, "--device", help="auto, cpu, cuda or a chip.")


@answers("shown")
def show(
    job: Path = typer.Argument(..., help="The job file."),
    record: list[int] = typer.Option([], "--record", min=1, help="This record too; from 1."),
    first: int = typer.Option(3, "--first", min=0, help="Records from the beginning."),
    most: int = typer.Option(100_000, "--limit", min=1, help="Records to count over, at most."),
    sets: list[str] = typer.Option([], "--set", help="Override one key: data.max_length=64."),
) -> Answer:
    """Show what of a job's records is read, what is learned, and what is lost and why.

    Exit code 1 where a record is refused: training would stop there.
    """
    import sys

    from joymigrate.cli._color import use_color
    from joymigrate.cli._output import talk
    from joymigrate.cli._train_extra import need_extra
    from joymigrate.report import record_view
    from joymigrate.run.train import job as jobs
    from joymigrate.run.train import show as showing

    need_extra()
    found = showing.show(jobs.load(job, sets, lambda line: talk([line])), record, first, most)
    text = record_view.text(found, color=use_color(sys.stdout))
    return Answer(showing.document(found), text, code=bool(found.refused))


def evaluate(
    target: Path = TARGET,
    data: list[Path] = DATA,
    job: Path | None = JOB,
    output: Path | None = OUTPUT,
    batch: int = BATCH,
    limit: int | None = LIMIT,
    step: int | None = STEP,
    device: str | None = DEVICE,
    form: str = format_option("evaluation"),
) -> int:
    """Score a trained model on records with references; samples go to -o, metrics to stdout."""
    from joymigrate.cli._output import emit, talk
    from joymigrate.run.train import evaluate as evaluating

    check_format(form, "evaluation")
    wish = evaluating.EvaluateOptions(batch=batch, limit=limit, step=step, device=device)
    found = run(target, job, data, wish)
    if output is not None:
        emit(evaluating.lines(found.rows), output)
    if found.skipped:
        talk([f"{found.skipped} records gave no sample"])
    document = {
        "schema": "joymigrate.evaluation/1",
        "task": found.rows[0]["task"],
        "samples": len(found.rows),
        "skipped": found.skipped,
        "metrics": evaluating.clean(found.metrics),
    }
    width = max(map(len, [*found.metrics, "samples"]))
    lines = [f"{name:<{width}}  {value:.6g}" for name, value in found.metrics.items()]
    text = "\n".join([f"{'samples':<{width}}  {len(found.rows)}", *lines]) + "\n"
    write_answer(Answer(document, text), form)
    return Exit.OK


def predict(
    target: Path = TARGET,
    data: list[Path] = DATA,
    job: Path | None = JOB,
    output: Path | None = OUTPUT,
    batch: int = BATCH,
    limit: int | None = LIMIT,
    step: int | None = STEP,
    device: str | None = DEVICE,
    tokens: int = typer.Option(128, "--max-new-tokens", min=1, help="Of a text, at most."),
) -> int:
    """Write a model's predictions for records without references, as JSONL."""
    from joymigrate.cli._output import emit
    from joymigrate.run.train import evaluate as evaluating

    wish = evaluating.EvaluateOptions(
        references=False, batch=batch, limit=limit, step=step, device=device, new_tokens=tokens
    )
    emit(evaluating.lines(run(target, job, data, wish).rows), output)
    return Exit.OK


def run(target: Path, job: Path | None, data: list[Path], wish: EvaluateOptions):  # type: ignore[no-untyped-def]
    """Load the job and look."""
    from joymigrate.cli._output import talk
    from joymigrate.cli._train_extra import need_extra
    from joymigrate.run.train import evaluate as evaluating
    from joymigrate.run.train import job as jobs
    from joymigrate.run.train.run_folder import RunFolder

    need_extra()
    if not target.is_dir():
        raise JoyError("no such run or model folder", where=str(target))

    def tell(line: str) -> None:
        talk([line])

    loaded = jobs.load(job, tell=tell) if job is not None else None
    if not data:
        known = loaded
        if known is None and (target / "job.json").is_file():
            known = RunFolder(target).job()
        data = [known.path(name) for name in known.data.eval] if known is not None else []
    if not data:
        raise JoyError("no data to look at", help="--data FILE, or data.eval in the job")
    return evaluating.evaluate(target, loaded, data, wish, tell)


def labelstudio(
    way: str = typer.Argument(..., help="in: Label Studio's export → records; out: → its import."),
    file: Path = typer.Argument(..., help="in: the exported JSON; out: samples (JSONL)."),
    data: Path | None = typer.Option(None, "--data", help="out: the records the samples are of."),
    output: Path | None = typer.Option(None, "-o", "--output", help="Write to a file."),
    model: str = typer.Option("joymigrate", "--model-version", help="out: as shown there."),
) -> int:
    """Turn Label Studio's JSON into records, or predictions into Label Studio's JSON."""
    from joymigrate.cli._output import emit, one_of, talk
    from joymigrate.run.train import labelstudio as studio

    if one_of(way, ("in", "out"), "labelstudio") == "in":
        made, left = studio.records_of(file)
        emit("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in made), output)
        for line in left:
            talk([line])
        return Exit.OK
    if data is None:
        raise JoyError("out needs the records beside the samples", help="--data FILE")
    tasks = studio.tasks_of(file, data, model)
    emit(json.dumps(tasks, ensure_ascii=False, indent=1) + "\n", output)
    return Exit.OK
