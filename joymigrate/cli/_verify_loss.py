"""`joymigrate verify loss`: two loss curves → how far apart, since which step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from joymigrate.cli import _verdicts
from joymigrate.cli._options import spread
from joymigrate.cli._verdicts import VerdictOptions

WANTS = {"package:tensorboard": "event files of TensorBoard"}


@spread
def command(
    *,
    asked: VerdictOptions,
    baseline: Path = typer.Argument(..., metavar="BASELINE", help="JSONL, CSV or TensorBoard."),
    target: Path = typer.Argument(..., metavar="TARGET", help="The same of the target."),
    envelope: list[Path] = typer.Option(
        [], "--envelope", help="Another run of the baseline: its own spread. Repeatable."
    ),
    column: str | None = typer.Option(None, "--column", help="The loss's name in the files."),
    smooth: int = typer.Option(1, "--smooth", min=1, help="Average over so many steps."),
    grade: str = _verdicts.GRADE,
    checkpoint: str | None = _verdicts.CHECKPOINT,
) -> int:
    """Compare two loss curves, and the gradient norms where both runs have them.

    Exit code 0: within 1 % on average (or the envelope); up to 2 % with a warning; 1: beyond, or
    not finite on one side alone; 3: too few steps in common.
    """
    from joymigrate.verify import loss, loss_curves
    from joymigrate.verify.tolerance import Tolerance

    view = asked.view()
    place = _verdicts.place(asked.to, asked.subject, grade, checkpoint)
    limits = Tolerance.of(place.chip)
    sides = [loss_curves.read_curves(path) for path in (baseline, target)]
    others = [loss_curves.read_curves(path) for path in envelope]
    found = loss.compare(sides[0], sides[1], others, column=column, tolerance=limits, smooth=smooth)
    lengths = [max(len(values) for values in side.columns.values()) for side in sides]
    verdict = loss.verdict(found, limits, lengths[0], lengths[1])
    verdict = replace(verdict, rehearsal=place.rehearsal)
    return _verdicts.finish(
        loss.document(found, verdict, limits), verdict, place, view, [baseline, target]
    )
