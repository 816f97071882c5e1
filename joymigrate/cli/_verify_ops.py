"""`joymigrate verify ops`: every distinct operator call, replayed against a float64 golden."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from joymigrate.cli import _verdicts
from joymigrate.cli._options import spread
from joymigrate.cli._output import talk
from joymigrate.cli._verdicts import VerdictOptions

NEEDS = ("extra:torch",)
WANTS = {"rehearsal": "--rehearse"}


@spread
def command(
    *,
    asked: VerdictOptions,
    trace: Path = typer.Option(
        ..., "--from", help="A trace of `profile record`, a Chrome trace, or a bundle."
    ),
    device: str | None = typer.Option(
        None, "--device", help="Where to replay: cpu, cuda, … (default: the chip's, else cpu)."
    ),
    rehearse: bool = typer.Option(False, "--rehearse", help="Replay on the simulated chip."),
    precision: str | None = typer.Option(
        None, "--precision", help="With --rehearse: matrix inputs as fp32, hf32, bf16 or fp16."
    ),
    inject: list[str] = typer.Option(
        [], "--inject", help="A faulty operator: gelu=1e-2 (relative error). Repeatable."
    ),
    noise: float = typer.Option(0.0, "--noise", min=0, help="Simulated rounding noise, in ulp."),
    level: str | None = typer.Option(None, "--level", help="One grade for all: L0, L1, L2."),
    op: list[str] = typer.Option([], "--op", help="Only operators whose name holds this."),
    edges: bool = typer.Option(True, "--edges/--no-edges", help="Unusual inputs as well."),
    backward: bool = typer.Option(True, "--backward/--no-backward", help="Gradients as well."),
    seed: int = typer.Option(0, "--seed", help="Of the inputs."),
    max_elements: int = typer.Option(
        1 << 27, "--max-elements", min=1, help="Leave out calls with more input elements."
    ),
    evidence: Path | None = typer.Option(
        None, "--evidence", metavar="DIR", help="Write the first wrong call of a bundle as a case."
    ),
) -> int:
    """Replay operators on a device: as recorded, with unusual inputs, and their gradients.

    Exit code 0: all within the chip's limits; 1: one is not; 3: too few could be compared.
    """
    from joymigrate.extras import need

    need("torch", "torch", what="replaying operators")
    from joymigrate.cli._output import Progress, split
    from joymigrate.verify.ops import document as documents
    from joymigrate.verify.ops.places import find_device
    from joymigrate.verify.ops.target import read_faults
    from joymigrate.verify.ops.worker import WorkerOrder, work
    from joymigrate.verify.tolerance import Tolerance

    view = asked.view()
    place = _verdicts.place(asked.to, asked.subject)
    if not trace.exists():
        from joymigrate.errors import JoyError

        raise JoyError("there is no such trace", where=str(trace), help="check --from")
    faults = read_faults(inject)
    device = _verdicts.device(device, place.chip, rehearse=rehearse)
    if device != "cpu" and not rehearse:
        find_device(device, place.chip)
    limits = Tolerance.of(place.chip)
    limits.operator("aten::mm", "float32", level)  # an unknown level is an error here
    order = WorkerOrder(
        str(trace.resolve()), device, place.chip, noise, {} if rehearse else faults, edges,
        backward, level, seed, max_elements, tuple(split(op)),
        str(evidence.resolve()) if evidence else None,
    )  # fmt: skip
    start: list[str] = []
    if rehearse:
        options = [f"--inject={text}" for text in inject]
        options += [f"--precision={precision}"] if precision else []
        start = [sys.executable, "-m", "joymigrate", "rehearse", "-q", "--to", place.chip]
        start += ["--devices", "1", *options, "--"]
    with Progress("replaying") as progress:
        outcome = work(order, start, progress)
    if evidence is not None:
        case = evidence / "reproduce.py"
        none = "no evidence: no call with kept arguments is wrong (record with --arguments)"
        words = f"evidence in {evidence}: python {case} DEVICE" if case.is_file() else none
        talk([f"verify: {words}"])
    verdict = documents.verdict(outcome.rows, limits.operator_coverage, outcome.facts)
    place = _verdicts.place_of(place, outcome.facts)
    return _verdicts.finish(
        documents.document(verdict, outcome.rows), verdict, place, view, [trace],
    )  # fmt: skip
