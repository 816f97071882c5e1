"""`profile advise`: what would be slow, missing or wrong on a chip, and what to do about it."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli._answers import check_format
from joymigrate.cli._common_options import OUTPUT, TO
from joymigrate.cli._language import OPTION as LANG
from joymigrate.cli._language import speaker
from joymigrate.errors import Exit
from joymigrate.language import speaking


def command(
    traces: list[Path] = typer.Argument(
        ..., metavar="TRACE...", help="Recordings, traces, profiles."
    ),
    to: str | None = TO,
    version: str | None = typer.Option(
        None, "--chip-version", "--version", help="Version of the chip's torch package."
    ),
    select: list[str] = typer.Option([], "--select", help="Only this advice. Repeatable."),
    ignore: list[str] = typer.Option([], "--ignore", help="Not this advice. Repeatable."),
    form: str = typer.Option("text", "--format", help="text, json, md, html or sarif."),
    output: Path | None = OUTPUT,
    lang: str | None = LANG,
) -> int:
    """Advice for a chip from recordings of a program, or from profiles made on the chip."""
    from joymigrate import chips, config
    from joymigrate.cli._output import emit, fit, split
    from joymigrate.profile.advice import advise_all
    from joymigrate.report import advice as report

    check_format(form, "advice")
    chip = chips.target(to or config.load(Path.cwd())["to"])
    found = advise_all(traces, chip, version=version, wanted=split(select), unwanted=split(ignore))
    with speaking(speaker("en" if form == "json" else lang)):
        told = report.render(form, found, chip, [str(path) for path in traces])
    emit(fit(told, output) if form == "text" else told, output)
    return Exit.OK
