"""`verify compare`: two recordings, held against each other."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli import _verdicts


def command(
    baseline: Path = typer.Argument(..., metavar="BASELINE", help="A bundle: folder or tar."),
    target: Path = typer.Argument(..., metavar="TARGET", help="Another one."),
    mapping: Path | None = typer.Option(
        None, "--map", metavar="FILE", help="Names that differ: {baseline: target}."
    ),
    to: str | None = _verdicts.TO,
    subject: str | None = _verdicts.SUBJECT,
    checkpoint: str | None = _verdicts.CHECKPOINT,
    form: str = _verdicts.FORMAT,
    output: Path | None = _verdicts.OUTPUT,
    verbose: bool = _verdicts.VERBOSE,
) -> int:
    """Compare two recordings of `verify record`, without running anything.

    Free steps accumulate rounding: a bundle that a replay kept (`--keep`) tells more.
    """
    from joymigrate.cli._judging import judged, where
    from joymigrate.verify.bundle import open_bundle

    form = _verdicts.checked(form)
    ours, theirs = open_bundle(baseline), open_bundle(target)
    place = where(to, subject, checkpoint, theirs, False)
    document, verdict = judged(ours, theirs, place, mapping)
    return _verdicts.finish(
        document, verdict, place, form, output, [baseline, target], verbose=verbose
    )
