"""The whole journey of a project in one command: scan to serving, with gates and one report."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from joymigrate.cli._answers import check_format, format_option
from joymigrate.cli._common_options import TO
from joymigrate.cli._dashes import WithProgram
from joymigrate.cli._entry import asker, choose_entry
from joymigrate.cli._language import OPTION as LANG
from joymigrate.cli._language import language_of
from joymigrate.cli._output import emit, one_of, talk
from joymigrate.cli._progress import WIDTH, JourneyProgress
from joymigrate.cli._report_live import answer_of
from joymigrate.errors import Exit, JoyError
from joymigrate.language import Language, speaking, tell

if TYPE_CHECKING:
    from joymigrate.journey import Gates, Journey, JourneyRequest

NEEDS = {"PATH": ("extra:torch", "chip|rehearsal"), "--dry-run": ()}
COMMAND_CLASS = WithProgram
WANTS = {"PATH": {"extra:serve": "--serve"}}

MOST_COMMENT = 65_000  # characters; GitHub takes 65,536 and GitLab more
RECORD = "joymigrate verify record -o NAME.jmb --steps 0-2 -- python train.py"


def command(
    path: Path = typer.Argument(Path("."), metavar="PATH", help="The project."),
    program: list[str] | None = typer.Argument(
        None, metavar="-- COMMAND", help="How to start it, as with --entry."
    ),
    entry: str = typer.Option("", "--entry", help="How to start it: 'python train.py --steps 3'."),
    to: str | None = TO,
    style: str | None = typer.Option(
        None, "--style", help="agnostic (the default; runs on both), accelerator or direct."
    ),
    steps: str = typer.Option("0-2", "--steps", help="Optimiser steps that are compared."),
    once: bool = typer.Option(
        False, "--once", help="Record the original once: its free run is not judged then."
    ),
    serve: Path | None = typer.Option(None, "--serve", help="A folder of weights to try serving."),
    map: Path | None = typer.Option(None, "--map", help="Renamed modules, for the comparison."),
    baseline: Path | None = typer.Option(
        None,
        "--baseline",
        metavar="NAME.jmb",
        help=f"A recording of the original from a machine with a GPU, made there with `{RECORD}`.",
    ),
    baseline_entry: str = typer.Option(
        "",
        "--baseline-entry",
        metavar="COMMAND",
        help="How the original runs on this machine: 'python train.py --device cpu --steps 3'.",
    ),
    train: str = typer.Option(
        "", "--train", metavar="COMMAND", help="A longer run for the losses than that of --entry."
    ),
    devices: int | None = typer.Option(
        None,
        "--devices",
        min=1,
        max=64,
        help="Devices of the simulated machine (default: as many as the entry starts processes).",
    ),
    unsafe: bool = typer.Option(False, "--unsafe", help="Also edits that need review."),
    rounds: int = typer.Option(
        5, "--rounds", min=0, max=20, help="Most mends that are tried on a copy against a stop."
    ),
    yes: bool = typer.Option(
        False, "--yes", help="Take mends that cure a stop into the work tree."
    ),
    agent: str = typer.Option(
        "",
        "--agent",
        metavar="CMD",
        help="A program that mends stops in a copy; its diff counts when every judge agrees.",
    ),
    agent_rounds: int = typer.Option(
        3, "--agent-rounds", min=1, max=20, help="Most tries of --agent for one stop."
    ),
    agent_seconds: float = typer.Option(
        900, "--agent-seconds", min=1, help="Longest time of one try of --agent."
    ),
    agent_files: list[str] = typer.Option(
        [], "--agent-file", metavar="FILE", help="Also this file of the project may change."
    ),
    allow_dirty: bool = typer.Option(False, "--allow-dirty", help="Uncommitted changes are fine."),
    until: str | None = typer.Option(None, "--until", metavar="STEP", help="Stop after this step."),
    fresh: bool = typer.Option(False, "--fresh", help="Begin anew, whatever was done before."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show the plan, do nothing."),
    ci: bool = typer.Option(
        False, "--ci", help="Quiet; also write SARIF, JUnit and Markdown for a pull request."
    ),
    ci_output: Path | None = typer.Option(
        None, "--ci-output", metavar="DIR", help="Where --ci writes (.joymigrate/journey/ci)."
    ),
    report: Path | None = typer.Option(
        None,
        "--report",
        metavar="FILE",
        help="The page (default: .joymigrate/journey/report.html).",
    ),
    format: str = format_option("journey", " next: 4 kB of JSON for agents."),
    lang: str | None = LANG,
    quiet: bool = typer.Option(False, "-q", "--quiet"),
) -> int:
    """Take PATH from CUDA to another chip, step by step, as far as the gates let it."""
    from joymigrate import chips, config
    from joymigrate.journey import JourneyRequest, devices_of, read_entry, read_gates, run_journey
    from joymigrate.journey.runner import check_step_name
    from joymigrate.ledger import Ledger

    check_format(format, "journey")
    lang = language_of(lang, path)
    if not path.is_dir():
        raise JoyError("the project is a folder", where=str(path), help="joymigrate migrate FOLDER")
    if baseline is not None and not baseline.exists():
        raise JoyError(
            "there is no recording of that name",
            where=str(baseline),
            help=f"on a machine with a GPU: {RECORD}",
        )
    settings = config.load(path, {"style": style})
    chosen = config.choose_journey_style(settings)
    one_of(chosen, ("agnostic", "accelerator", "direct"), "--style")
    gates = read_gates(settings["gates"], settings.sources["gates"])
    chip = chips.target(to or settings["to"])
    project = path.resolve()
    check_step_name(until)
    named = chosen_entry(entry, program or [])
    if not named and not dry_run and serve is None and until not in ("scan", "rewrite"):
        named = choose_entry(project, asker())
    words = read_entry(named, project)
    request = JourneyRequest(
        project=project,
        entry=words,
        chip=chip.name,
        style=chosen,
        steps=steps,
        once=once,
        serve=serve.resolve() if serve else None,
        map=map.resolve() if map else None,
        baseline=baseline.resolve() if baseline else None,
        baseline_entry=read_entry(baseline_entry, project),
        train=read_entry(train, project),
        devices=devices or devices_of(words, project),
        unsafe=unsafe,
        allow_dirty=allow_dirty,
        rounds=rounds,
        yes=yes,
    )
    here = is_here(chip.name)
    if dry_run:
        emit(planned_text(request, gates, here, until, lang))
        return Exit.OK
    home = Ledger.of(project).home / "journey"
    going = JourneyProgress(quiet=quiet or ci, lang=lang, warns=not quiet, folder=home)

    def travel(fresh: bool = False) -> Journey:
        gpu = gpu_is_here()
        return run_journey(
            request, gates, until=until, fresh=fresh, chip_here=here, gpu_here=gpu, tell=going
        )

    try:
        journey = travel(fresh)
        if agent:
            from joymigrate.agent.patches.rounds import AgentOrder, carry_on

            asked = AgentOrder(agent, agent_rounds, agent_seconds, tuple(agent_files))
            journey = carry_on(journey, gates, asked, travel, lambda line: talk([line]))
    except KeyboardInterrupt:
        print(going.interrupted(), file=sys.stderr)
        return Exit.INTERRUPTED
    folder = (ci_output or journey.folder / "ci") if ci else None
    with speaking(Language(lang)):
        written = write_reports(journey, report, folder)
        if format == "text" and going.terminal and sys.stdout.isatty():
            emit(last_words(journey, shorten_path(written)))
            return code_of(journey)
        emit(render(journey, format))
        if not quiet:
            print(tell("report: {path}", path=written), file=sys.stderr)
    return code_of(journey)


def chosen_entry(entry: str, program: list[str]) -> str:
    """The command of `--entry`, or the one behind two dashes."""
    if entry and program:
        raise JoyError(
            f"the program is named twice: --entry {entry!r} and -- {shlex.join(program)}",
            help="give one of them",
        )
    return shlex.join(program) or entry


def code_of(journey: Journey) -> int:
    """1 where a step failed or a gate held."""
    return Exit.FOUND if journey.verdict == "fail" else Exit.OK


def shorten_path(path: Path) -> str:
    """A path as short as it can be said from here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def is_here(name: str) -> bool:
    """Whether the chip itself is in this machine."""
    from joymigrate import chips
    from joymigrate.chips import hide_driverless
    from joymigrate.device import why_not

    hide_driverless()
    return why_not(chips.get(name)) is None


def gpu_is_here() -> bool:
    """Whether a GPU of the origin is in this machine and torch can use it."""
    import torch

    return torch.cuda.is_available()


def planned_text(
    request: JourneyRequest, gates: Gates, here: bool, until: str | None, lang: str = "en"
) -> str:
    """The plan: every step with its gates and the commands that it would run."""
    from joymigrate.journey import NAMES, commands, plan
    from joymigrate.journey.gates import OF
    from joymigrate.journey.runner import check_step_name

    check_step_name(until)
    say = Language(lang)
    head = "{project} to {chip}, style {style}"
    lines = [say(head, project=request.project, chip=request.chip, style=request.style), ""]
    last = NAMES.index(until) if until in NAMES else len(NAMES)
    for number, step in enumerate(plan(request), 1):
        why = step.skip or (f"--until {until}" if number - 1 > last else None)
        lines.append(
            f"  {number}  {step.name:<{WIDTH}} {say(step.title)}"
            + (say("  (left out: {why})", why=why) if why else "")
        )
        if why:
            continue
        limits = [(name, getattr(gates, name)) for name in OF.get(step.name, ())]
        held = [f"{name} = {value}" for name, value in limits if value not in (None, False, "off")]
        lines += [say("       gate: {gate}", gate=one) for one in held]
        lines += [f"       $ {one}" for one in commands(request, step.name, chip_here=here)]
    return "\n".join([*lines, "", say("Nothing was run, nothing was changed.")]) + "\n"


def render(journey: Journey, format: str) -> str:
    """The result in the form that was asked for."""
    from joymigrate.journey.model import to_json

    if format == "next":
        return render_next(journey.request.project)
    return answer_of(to_json(journey), journey.folder).draw(format)


def render_next(project: Path) -> str:
    """The next step with what decides it: enough for an agent to act on."""
    import json

    from joymigrate.agent import next_step
    from joymigrate.agent.migration_state import read_standing

    at = read_standing(project)
    found = next_step.document(at, next_step.decide(at, []), next_step.MOST_ANSWER)
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def last_words(journey: Journey, report: str) -> str:
    """The result where the steps were shown already."""
    from joymigrate.journey.model import to_json
    from joymigrate.report.journey_closing import closing

    return closing(to_json(journey), report)


def write_reports(journey: Journey, report: Path | None, ci: Path | None) -> Path:
    """Write the page, and what a pull request wants; returns where the page lies."""
    from joymigrate.journey.model import to_json
    from joymigrate.report.renderers.md import shorten

    target = (report or journey.folder / "report.html").resolve()
    made = answer_of(to_json(journey), journey.folder, target)
    emit(made.draw("html"), target)
    if ci is not None:
        ci.mkdir(parents=True, exist_ok=True)
        emit(made.draw("junit"), ci / "junit.xml")
        emit(shorten(made.draw("md"), MOST_COMMENT), ci / "summary.md")
        if (journey.folder / "scan" / "scan.sarif").is_file():  # else the scan itself failed
            emit(sarif(journey), ci / "scan.sarif")
    return target


def sarif(journey: Journey) -> str:
    """The scan's findings and the journey's, at the lines of the files as they were committed."""
    import json

    from joymigrate.journey import original
    from joymigrate.journey.entry import script_of
    from joymigrate.journey.model import to_json
    from joymigrate.ledger import Ledger
    from joymigrate.report.journey_sarif import merge

    project = journey.request.project
    ledger = Ledger.of(project)
    steps = original.rewrites(ledger, project)
    scan = journey.folder / "scan" / "scan.sarif"
    log = merge(
        json.loads(scan.read_text(encoding="utf-8")),
        to_json(journey),
        lambda path, line: original.line_before(ledger, steps, project, path, line),
        script_of(list(journey.request.entry)),
    )
    return json.dumps(log, indent=1, ensure_ascii=False) + "\n"
