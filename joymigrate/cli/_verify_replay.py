"""`verify replay`: run the migrated program, and judge its modules by a baseline."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli import _verdicts
from joymigrate.cli._options import spread
from joymigrate.cli._verdicts import VerdictOptions

NEEDS = ("extra:torch",)
WANTS = {"rehearsal": "--rehearse"}


@spread
def command(
    *,
    asked: VerdictOptions,
    baseline: Path = typer.Argument(..., metavar="BASELINE", help="The bundle of `verify record`."),
    program: list[str] | None = typer.Argument(None, metavar="-- COMMAND"),
    mapping: Path | None = typer.Option(
        None, "--map", metavar="FILE", help="Names that differ: {baseline: target}."
    ),
    rehearse: bool = typer.Option(
        False, "--rehearse", help="Run the program on the simulated chip."
    ),
    devices: int = typer.Option(
        8, "--devices", min=1, max=64, help="With --rehearse: devices of the machine."
    ),
    migrate: bool = typer.Option(
        False, "--migrate", help="Rewrite the program in memory as it loads (the runtime switch)."
    ),
    precision: str = typer.Option(
        "fp32", "--precision", help="With --rehearse: matrix inputs in fp32, hf32, bf16 or fp16."
    ),
    inject: list[str] = typer.Option(
        [], "--inject", help="With --rehearse: a faulty operator, gelu=1e-2. Repeatable."
    ),
    noise: float = typer.Option(
        0.0, "--noise", metavar="ULP", help="Simulate another chip's rounding on the CPU."
    ),
    keep: Path | None = typer.Option(
        None, "--keep", metavar="NAME.jmb", help="Keep what the target recorded."
    ),
    batches: bool = typer.Option(
        False, "--give-batches", help="Hand out the baseline's batches (`record --batches`)."
    ),
    module: str | None = typer.Option(None, "-m", help="Run a module, like python -m."),
    checkpoint: str | None = _verdicts.CHECKPOINT,
    strict: bool = _verdicts.STRICT,
    evidence: Path | None = typer.Option(
        None, "--evidence", metavar="DIR", help="A script and tensors of the first wrong place."
    ),
) -> int:
    """Run COMMAND and say whether it computes what the baseline computed.

    Exit code 0: it does; 1: it does not, and the first wrong module is named; 3: that cannot be
    told. The program's own output goes to stderr when the verdict goes to stdout.
    """
    from joymigrate.cli._replaying import ReplayRequest, run

    return run(
        ReplayRequest(
            baseline=baseline,
            command=[*(["-m", module] if module else []), *(program or [])],
            mapping=mapping,
            rehearse=rehearse,
            devices=devices,
            migrate=migrate,
            noise=noise,
            precision=precision,
            inject=tuple(inject),
            keep=keep,
            strict=strict,
            evidence=evidence,
            batches=batches,
        ),
        asked,
        checkpoint,
    )
