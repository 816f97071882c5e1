"""List, check and time the operators that have several implementations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from joymigrate.cli._answers import Answer, answers
from joymigrate.cli._common_options import TO
from joymigrate.cli._groups import group
from joymigrate.cli._output import Progress, one_of, split, talk
from joymigrate.errors import JoyError

if TYPE_CHECKING:
    from joymigrate.run.kernels import Kernel

NEEDS = {"list": ("extra:torch",), "check": ("extra:torch",), "bench": ("extra:torch",)}
WANTS = {
    "check": {"extra:kernels": "implementations in Triton"},
    "bench": {"extra:kernels": "implementations in Triton"},
}

app = group("List, check and time the operators that have several implementations.")
DTYPES = ("float32", "float16", "bfloat16")

NAMES = typer.Argument(None, metavar="NAME", help="Only these operators.")
OPS = typer.Option([], "--op", metavar="NAME", help="The same as an option. Repeatable.")
DEVICE = typer.Option(
    None, "--device", help="cpu, or a torch device type (default: the chip's, else cuda, else cpu)."
)


@app.command("list")
@answers("kernels")
def list_kernels(
    names: list[str] = NAMES,
    ops: list[str] = OPS,
    to: str | None = TO,
    device: str | None = DEVICE,
) -> Answer:
    """Every operator, what computes it, and what can run here."""
    from joymigrate.report import kernels as report

    chosen, about = choose_kernels([*(names or ()), *ops]), where(to, device)
    rows = report.listing(chosen, about["chip"], about["device"])
    listed = {"operators": report.operators(chosen), "kernels": rows}
    document = {"schema": report.SCHEMA, **about, **listed}
    return Answer(document, report.list_text(chosen, rows))


@app.command("check")
@answers("kernels")
def check_kernels(
    names: list[str] = NAMES,
    ops: list[str] = OPS,
    to: str | None = TO,
    device: str | None = DEVICE,
    dtype: list[str] = typer.Option([], "--dtype", help="Only these: float32, float16, bfloat16."),
) -> Answer:
    """Compare every implementation that can run here to float64, forward and backward.

    Exit 1 when a result is wrong.
    """
    from joymigrate.report import kernels as report
    from joymigrate.run.kernels.check import check_kernel

    wanted = dtypes_of(dtype)
    chosen, about = choose_kernels([*(names or ()), *ops]), where(to, device)
    rows: list[Any] = []
    with Progress("checking") as progress:
        for number, kernel in enumerate(chosen):
            progress(number, len(chosen))
            rows += check_kernel(kernel, about["device"], wanted)
    return Answer(
        report.check_document(rows, about),
        report.check_text(rows),
        code=any(row.status == "fail" for row in rows),
    )


@app.command("bench")
@answers("kernels-bench")
def bench_kernels(
    names: list[str] = NAMES,
    ops: list[str] = OPS,
    to: str | None = TO,
    device: str | None = DEVICE,
    dtype: list[str] = typer.Option(
        [], "--dtype", help="float32, float16, bfloat16 (default: float32 and bfloat16)."
    ),
    phase: str = typer.Option("both", "--phase", help="infer, train (with backward) or both."),
    rounds: int = typer.Option(7, "--rounds", min=3, max=1000, help="Timings of each case."),
    tune: bool = typer.Option(
        False, "--tune", help="Keep the winners: from now on they are chosen for such shapes."
    ),
) -> Answer:
    """Time every implementation on a grid of shapes, side by side."""
    from joymigrate.report import kernels as report
    from joymigrate.run.kernels import bench

    phases = (
        bench.PHASES if one_of(phase, ("both", *bench.PHASES), "--phase") == "both" else (phase,)
    )
    wanted = dtypes_of(dtype) or ["float32", "bfloat16"]
    chosen, about = choose_kernels([*(names or ()), *ops]), where(to, device)
    found: list[Any] = []
    with Progress("timing") as progress:
        for number, kernel in enumerate(chosen):
            progress(number, len(chosen))
            options: dict[str, Any] = {"dtypes": wanted, "phases": phases, "rounds": rounds}
            found += bench.bench([kernel], about["device"], **options, tune=tune)
    if tune:
        talk([f"note: the winners are kept in {kept_at(about)}"])
    document = report.bench_document(found, {**about, "tuned": tune})
    return Answer(document, report.bench_text(found, about))


def choose_kernels(ops: list[str]) -> list[Kernel]:
    """The operators asked for, or all."""
    from joymigrate.chips import hide_driverless
    from joymigrate.run import kernels

    hide_driverless()
    return [kernels.op(name) for name in split(ops)] or [*kernels.operators().values()]


def dtypes_of(values: list[str]) -> list[str]:
    """The dtypes asked for."""
    return [one_of(value, DTYPES, "--dtype") for value in split(values)]


def where(to: str | None, device: str | None) -> dict[str, Any]:
    """Which device the command runs on, and what it is called.

    A device that is named must be there; else it is the chip's, CUDA's or the CPU, whichever is
    there first.
    """
    import torch

    from joymigrate import __version__, config
    from joymigrate.chips import hide_driverless, origin, target
    from joymigrate.device import CPU, Device, open_device, why_not
    from joymigrate.run.kernels import chipnames, tuning_results

    hide_driverless()
    chip = target(to or config.load(Path.cwd())["to"])
    if device is None:
        first = next((c for c in (chip, origin()) if why_not(c) is None), None)
        opened = open_device(first)
    elif device == CPU:
        opened = Device(CPU)
    else:
        opened = open_named(device, chip)
    return {
        "version": __version__,
        "device": opened.type,
        "chip": chipnames.of_device(opened.type),
        "card": tuning_results.card_name(opened.type),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "rehearsal": opened.rehearsal,
    }


def open_named(device: str, chip: Any) -> Any:
    """The device of this type, which must be there."""
    from joymigrate.chips import all_chips, origin
    from joymigrate.device import open_device

    known = [chip, origin(), *all_chips().values()]  # some chips keep the origin's device
    found = next((item for item in known if item.device == device), None)
    if found is None:
        names = sorted({"cpu", *(item.device for item in known)})
        raise JoyError(f"there is no device type '{device}'", help=f"one of {', '.join(names)}")
    return open_device(found, required=True)


def kept_at(about: dict[str, Any]) -> Path:
    """The file of tuned choices."""
    from joymigrate.run.kernels import tuning_results

    return tuning_results.path_of(about["chip"], about["card"] or "")
