"""`profile advise`: what would be slow, missing or wrong on a chip, and what to do about it."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli._answers import Answer, answers
from joymigrate.cli._common_options import TO
from joymigrate.cli._language import OPTION as LANG
from joymigrate.cli._language import language_of


@answers("advice")
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
    lang: str | None = LANG,
) -> Answer:
    """Advice for a chip from recordings of a program, or from profiles made on the chip."""
    from joymigrate import chips, config
    from joymigrate.cli._output import split
    from joymigrate.profile.advice import advise_all
    from joymigrate.report import advice as report

    chip = chips.target(to or config.load(Path.cwd())["to"])
    found = advise_all(traces, chip, version=version, wanted=split(select), unwanted=split(ignore))
    said = found, chip, [str(path) for path in traces]
    own = {"sarif": lambda: report.sarif(found)}
    return Answer(
        report.document(*said), lambda: report.describe(*said), own=own, lang=language_of(lang)
    )
