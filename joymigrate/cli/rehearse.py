"""Run a program on a simulated chip: what breaks, falls back, how much memory, which kernels."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from joymigrate.cli._common_options import OUTPUT, TO
from joymigrate.cli._language import OPTION as LANG
from joymigrate.cli._language import speaker
from joymigrate.cli._output import emit
from joymigrate.language import Language, speaking

# The chip's own profiler needs a library that the simulated runtime does not have.
NEEDS = ("rehearsal",)

NOT_REHEARSED = ("JM160",)
CONTEXT_SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def command(
    program: list[str] | None = typer.Argument(None, metavar="-- COMMAND"),
    to: str | None = TO,
    soc: str | None = typer.Option(None, "--soc", help="The chip's model, such as 910B3."),
    devices: int = typer.Option(8, "--devices", min=1, max=64, help="Devices of the machine."),
    memory: str | None = typer.Option(None, "--memory", help="Memory of a device: 64GiB."),
    mode: str = typer.Option(
        "run",
        "--mode",
        help="run: numbers; dry: kernels and memory only; shadow: both, always; async: also the "
        "order of streams.",
    ),
    precision: str = typer.Option(
        "fp32", "--precision", help="Matrix inputs: fp32, hf32, bf16 or fp16."
    ),
    policy: str = typer.Option(
        "count", "--policy", help="Operators the chip has no kernel for: count or error."
    ),
    strict: bool = typer.Option(
        False, "--strict", help="Raise where the chip refuses a call; exit code 1 if swallowed."
    ),
    cann: str | None = typer.Option(
        None,
        "--cann",
        metavar="VERSION",
        help="The version of CANN that the package is told (default: what it came out with).",
    ),
    watch: bool = typer.Option(
        True, "--watch/--no-watch", help="Tell where numbers stop being finite."
    ),
    inject: list[str] | None = typer.Option(
        None, "--inject", help="A faulty operator: gelu=1e-2 (relative error). Repeatable."
    ),
    migrate: bool = typer.Option(
        False, "--migrate", help="Rewrite the program in memory as it loads (the runtime switch)."
    ),
    switch: str = typer.Option(
        "rules", "--switch", help="With --migrate: rules (joymigrate's own) or vendor (its shim)."
    ),
    follow_imports: list[str] = typer.Option(
        [], "--follow-imports", metavar="PACKAGE", help="With --migrate: this package as well."
    ),
    fill: bool = typer.Option(
        False, "--fill", help="Compute operators that the chip lacks out of those it has."
    ),
    module: str | None = typer.Option(None, "-m", help="Run a module, like python -m."),
    form: str | None = typer.Option(None, "--format", help="text, json or html."),
    output: Path | None = OUTPUT,
    seal: Path | None = typer.Option(
        None,
        "--seal",
        metavar="FILE",
        help="Write what is predicted, hashed, before a chip is seen.",
    ),
    yes: bool = typer.Option(
        False,
        "--yes",
        help="Get the chip's package for rehearsals without asking, where it is missing.",
    ),
    quiet: bool = typer.Option(False, "-q", "--quiet"),
    lang: str | None = LANG,
) -> int:
    """Run COMMAND on the simulated chip. Its output and exit code are its own.

    `joymigrate rehearse setup` gets the vendor's package that rehearsals run, once.
    """
    from joymigrate.cli import _rehearse_setup

    if program and program[0] == "setup":
        return _rehearse_setup.run(program[1:])
    from contextlib import nullcontext

    from joymigrate import launching
    from joymigrate.blame.end_files import prepare
    from joymigrate.chips import calibration, target
    from joymigrate.cli import _fill, _switch
    from joymigrate.extras import need
    from joymigrate.run.door.notes import read_notes
    from joymigrate.run.kit import seal as sealing
    from joymigrate.run.rehearse import matrix_unit, report, session, stop_judge, summary
    from joymigrate.run.rehearse.options import read_options

    need("torch", "torch", what="a rehearsal")
    _rehearse_setup.offer(yes=yes)
    form = report.chosen_format(form, output)
    language = speaker(lang)
    arguments = [*(["-m", module] if module else []), *(program or [])]
    resolved = launching.resolve(arguments)
    options = read_options(
        to=to,
        soc=soc,
        devices=devices,
        memory=memory,
        mode=mode,
        precision=precision,
        policy=policy,
        inject=inject or [],
        strict=strict,
        cann=cann,
        watch=watch,
    )
    with session.open_session(options) as settings:
        if not quiet:
            with speaking(language):
                print(report.banner(settings), file=sys.stderr, flush=True)
        notes = stop_judge.notes_folder(settings, os.environ)
        environment = session.environment(settings, launching.environment(**prepare(notes)))
        if fill:
            environment = _fill.fill_environment(environment, settings.chip, rehearsed=True)
        around = (
            _switch.switch_to(
                resolved,
                environment,
                chip=target(settings.chip),
                kind=switch,
                follow_imports=follow_imports,
                leave=NOT_REHEARSED,
                quiet=quiet,
                notes=str(settings.session),
            )
            if migrate
            else nullcontext(environment)
        )
        with around as ready:
            code = launching.run(resolved, ready)
        records = session.read_records(settings)
        called = {name for record in records for name in record["calls"]}
        known = calibration.load(settings.chip)
        measured = known.of_operators(called)
        stop = stop_judge.explain_stop(settings, notes, code, summary.refusals(records), migrate)
        unread = read_notes(settings.session)["words"] if settings.session and migrate else ()
        result = report.summarise(settings, records, code, measured, stop, unread)
        if seal is not None:
            sku = target(settings.chip).sku(settings.soc)
            calls = sealing.signatures_of(records)
            said = sealing.of_rehearsal(
                result, calls, measured, sku, matrix_unit.unit_of, known.rates()
            )
            sealing.write(said, seal)
    if not quiet:
        with speaking(language):
            print(report.as_text(result), file=sys.stderr)
            for line in calibration.lines(result["measured"]):
                print(line, file=sys.stderr)
    if output is not None:
        if form == "html":
            write_page(result, output, language)
        else:
            report.write(result, form, output, language.lang)
    return report.exit_code(result)


def write_page(result: Mapping[str, Any], output: Path, language: Language) -> None:
    """Write the report as a page."""
    from joymigrate.report import rehearsal_document, renderers

    with speaking(Language(language.lang, result.get("texts"))):
        emit(renderers.render(rehearsal_document.describe(result), "html"), output)
