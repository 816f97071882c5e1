"""`profile diff`: two traces of the same work, and where the second one loses time."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli._common_options import OUTPUT
from joymigrate.errors import Exit


def command(
    baseline: Path = typer.Argument(..., metavar="BASELINE", help="The trace to compare with."),
    target: Path = typer.Argument(..., metavar="TARGET", help="The trace made on the chip."),
    to: str | None = typer.Option(
        None, "--to", help="The target's chip, for its operators' names."
    ),
    most: int = typer.Option(15, "--most", min=1, help="Lines of each kind, in text."),
    form: str = typer.Option("text", "--format", help="text, json or html."),
    output: Path | None = OUTPUT,
) -> int:
    """Compare two traces by operator, module and phase, ranked by lost time."""
    from joymigrate import chips, config
    from joymigrate.cli._output import emit, one_of
    from joymigrate.profile import diff
    from joymigrate.report import profile_diff as report

    one_of(form, report.FORMATS, "--format")
    chip = chips.target(to or config.load(Path.cwd())["to"])
    own = chip.folder / "ops" / "aliases.yaml"
    found = diff.diff(baseline, target, own=own if own.is_file() else None)
    emit(report.render(form, found, most=most), output)
    return Exit.OK
