"""`verify compare`: two recordings, held against each other."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli import _verdicts
from joymigrate.cli._options import spread
from joymigrate.cli._verdicts import VerdictOptions

NEEDS = ("extra:torch",)


@spread
def command(
    *,
    asked: VerdictOptions,
    baseline: Path = typer.Argument(..., metavar="BASELINE", help="A bundle, or a dump.json."),
    target: Path = typer.Argument(..., metavar="TARGET", help="Another one."),
    mapping: Path | None = typer.Option(
        None, "--map", metavar="FILE", help="Names that differ: {baseline: target}."
    ),
    checkpoint: str | None = _verdicts.CHECKPOINT,
    strict: bool = _verdicts.STRICT,
) -> int:
    """Compare two recordings of `verify record`, without running anything.

    Either side may be a dump of msprobe (dump.json, or its folder): its statistics are compared.

    Free steps accumulate rounding: a bundle that a replay kept (`--keep`) tells more.
    """
    from joymigrate.cli._judging import judge, where
    from joymigrate.extras import need
    from joymigrate.verify import msprobe
    from joymigrate.verify.bundle import open_bundle
    from joymigrate.verify.model import verdict_json
    from joymigrate.verify.tolerance import Tolerance

    need("torch", "safetensors", what="reading a recording")
    view = asked.view()
    if msprobe.is_dump(baseline) or msprobe.is_dump(target):
        dumped = _verdicts.place(asked.to, asked.subject, checkpoint=checkpoint)
        verdict = msprobe.compare(baseline, target, Tolerance.of(dumped.chip))
        document = verdict_json(verdict)
        inputs = [path for path in (baseline, target) if path.is_file()]
        return _verdicts.finish(document, verdict, dumped, view, inputs)
    ours, theirs = open_bundle(baseline), open_bundle(target)
    place = where(asked.to, asked.subject, checkpoint, theirs, False)
    document, verdict = judge(ours, theirs, place, mapping, strict=strict)
    return _verdicts.finish(document, verdict, place, view, [baseline, target])
