"""A program that was ported by hand, beside its CUDA origin: do both compute the same?"""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from joymigrate.cli._answers import check_format, format_option
from joymigrate.cli._common_options import TO
from joymigrate.cli._dashes import WithProgram
from joymigrate.cli._language import OPTION as LANG
from joymigrate.cli._language import language_of
from joymigrate.cli._output import emit
from joymigrate.cli._progress import JourneyProgress
from joymigrate.errors import Exit, JoyError

NEEDS = ("extra:torch", "chip|rehearsal")
COMMAND_CLASS = WithProgram


def command(
    path: Path = typer.Argument(Path("."), metavar="PATH", help="The ported project."),
    program: list[str] | None = typer.Argument(
        None, metavar="-- COMMAND", help="How to start it, as with --entry."
    ),
    entry: str = typer.Option("", "--entry", help="How to start it: 'python train.py --steps 3'."),
    origin: str = typer.Option(
        "",
        "--origin",
        metavar="DIR|COMMIT",
        help="The program as it was for CUDA (default: HEAD where files differ from it).",
    ),
    baseline_entry: str = typer.Option(
        "", "--baseline-entry", metavar="COMMAND", help="How the origin is started, if not so."
    ),
    to: str | None = TO,
    steps: str = typer.Option("0-2", "--steps", help="Optimiser steps that are compared."),
    map: Path | None = typer.Option(None, "--map", help="Renamed modules, for the comparison."),
    train: str = typer.Option(
        "", "--train", metavar="COMMAND", help="A longer run for the losses than that of --entry."
    ),
    devices: int | None = typer.Option(
        None, "--devices", min=1, max=64, help="Devices of the simulated machine."
    ),
    fresh: bool = typer.Option(False, "--fresh", help="Begin anew, whatever was done before."),
    format: str = format_option("journey"),
    lang: str | None = LANG,
    quiet: bool = typer.Option(False, "-q", "--quiet"),
) -> int:
    """Run the origin by stand-ins here and the ported program on the chip, and compare them.

    Both draw the same random numbers. No file of the project is changed. Exit code 1: they differ,
    or one of them stops.
    """
    from joymigrate import chips, config
    from joymigrate.cli.migrate import chosen_entry, code_of, gpu_is_here, is_here, render
    from joymigrate.cli.migrate import write_reports as write
    from joymigrate.journey import JourneyRequest, devices_of, original, read_entry, read_gates
    from joymigrate.journey.runner import PAIR, run_journey
    from joymigrate.journey.source import find_origin
    from joymigrate.language import Language, speaking, tell
    from joymigrate.ledger import Ledger
    from joymigrate.ledger.place import make_home

    check_format(format, "journey")
    lang = language_of(lang, path)
    if not path.is_dir():
        raise JoyError("the project is a folder", where=str(path), help="joymigrate pair FOLDER")
    project = path.resolve()
    words = read_entry(chosen_entry(entry, program or []), project)
    if not words:
        raise JoyError("no program to compare", help="joymigrate pair . -- python train.py")
    settings = config.load(path, {})
    chip = chips.target(to or settings["to"])
    ledger = Ledger.of(project)
    home = make_home(ledger.root) / PAIR
    rewritten = original.rewrites(ledger, project)
    before = None
    if origin or not rewritten:
        given = str(project) if baseline_entry and not origin else origin
        before = find_origin(project, given, home / "origin")
        if before.in_memory:
            refuse_ported(words, project, chip)
    request = JourneyRequest(
        project=project,
        entry=words,
        chip=chip.name,
        style=str(rewritten[-1].details.get("style", "agnostic")) if rewritten else "agnostic",
        steps=steps,
        map=map.resolve() if map else None,
        baseline_entry=read_entry(baseline_entry, before.folder if before else project),
        train=read_entry(train, project),
        devices=devices or devices_of(words, project),
        allow_dirty=True,
        rounds=0,
        pair=True,
        origin=before,
    )
    going = JourneyProgress(quiet=quiet, lang=lang, warns=not quiet, folder=home)
    gates = read_gates(settings["gates"], settings.sources["gates"])
    here, gpu = is_here(chip.name), gpu_is_here()
    try:
        journey = run_journey(request, gates, fresh=fresh, chip_here=here, gpu_here=gpu, tell=going)
    except KeyboardInterrupt:
        print(going.interrupted(), file=sys.stderr)
        return Exit.INTERRUPTED
    with speaking(Language(lang)):
        page = write(journey, None, None)
        emit(render(journey, format))
        if not quiet:
            print(tell("report: {path}", path=page), file=sys.stderr)
    return code_of(journey)


def refuse_ported(words: tuple[str, ...], project: Path, chip: object) -> None:
    """Refuse a program that has nothing for the runtime switch to change: it was ported already,
    and would be compared with itself."""
    from joymigrate import chips
    from joymigrate.chips import Chip
    from joymigrate.journey.source import WHERE
    from joymigrate.rewrite.project import scan
    from joymigrate.rewrite.switch.plan import edits_by_file

    assert isinstance(chip, Chip)
    found = scan([project], chip=chip, origin=chips.origin())
    if any(edits_by_file(found.findings, ()).values()):
        return
    raise JoyError(
        "nothing here names CUDA: the program was ported already, and a program is never its own "
        "baseline",
        where=str(project),
        help=WHERE,
    )
