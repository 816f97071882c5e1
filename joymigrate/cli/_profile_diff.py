"""`profile diff`: two traces of the same work, and where the second one loses time."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli._answers import Answer, answers


@answers("profile-diff")
def command(
    baseline: Path = typer.Argument(..., metavar="BASELINE", help="The trace to compare with."),
    target: Path = typer.Argument(..., metavar="TARGET", help="The trace made on the chip."),
    to: str | None = typer.Option(
        None, "--to", help="The target's chip, for its operators' names."
    ),
    most: int = typer.Option(15, "--most", min=1, help="Lines of each kind, in text."),
) -> Answer:
    """Compare two traces by operator, module and phase, ranked by lost time."""
    from joymigrate import chips, config
    from joymigrate.profile import diff
    from joymigrate.report import profile_diff as report

    chip = chips.target(to or config.load(Path.cwd())["to"])
    own = chip.folder / "ops" / "aliases.yaml"
    found = diff.diff(baseline, target, own=own if own.is_file() else None)
    return Answer(report.document(found), lambda: report.describe(found, most))
