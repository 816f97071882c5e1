"""How fast is every implementation here, and which one should be chosen for which shape?

All implementations of a case run in turn, several rounds, so that a busy machine slows each of
them alike. A speed-up is the median over rounds of the reference's time by theirs. An
implementation beats the reference when it is at least 5 % faster in the median and was not slower
in a quarter of the rounds; what does not beat it is not chosen by a tuned cache.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from joymigrate.chips import all_chips
from joymigrate.errors import JoyError
from joymigrate.run.kernels import chipnames, tuning_results
from joymigrate.run.kernels.arguments import ReadyArguments, prepare
from joymigrate.run.kernels.operator import (
    REFERENCE,
    Call,
    OperatorCase,
    dtype_name,
)
from joymigrate.run.kernels.registry import Kernel, forget_choices
from joymigrate.run.kernels.results import flat
from joymigrate.run.kernels.samples import Samples
from joymigrate.run.kernels.select import function, only_checked, why_not

CLEARLY = 1.05  # faster by this in the median, to be chosen for it
SAMPLE_S = 2e-3  # one timing runs at least this long
PHASES = ("infer", "train")


@dataclass(frozen=True, slots=True)
class Timing:
    """One case in one dtype and phase. Times are medians in microseconds by implementation;
    `speed_up` is against the reference, `peak_pct` of the card's bandwidth or FLOP/s."""

    op: str
    case: str
    dtype: str
    phase: str
    call: Call
    times_us: dict[str, float]
    speed_up: dict[str, float]
    fastest: str
    chosen: str
    reason: str
    peak_pct: dict[str, float] = field(default_factory=dict)


def bench(
    kernels: Sequence[Kernel],
    device: str,
    *,
    dtypes: Sequence[str],
    phases: Sequence[str] = PHASES,
    rounds: int = 7,
    tune: bool = False,
) -> Iterator[Timing]:
    """Time the grids of `kernels` on a torch device type; with `tune`, keep the winners."""
    if is_simulated(device):
        raise JoyError(
            "a rehearsal has no times to measure", help="run kernels bench on the chip, or on a CPU"
        )
    for kernel in kernels:
        if kernel.operator.grid is None:
            continue
        for dtype in dtypes:
            if dtype not in kernel.operator.dtypes:
                continue
            for label, build in kernel.operator.grid(Samples(0)):
                case = replace(build(), name=label)
                for phase in phases:
                    if phase == "train" and not (kernel.operator.differentiable and case.grad):
                        continue
                    yield time_case(kernel, case, dtype, device, phase, rounds, tune)


def is_simulated(device: str) -> bool:
    """Whether this device is simulated."""
    import os

    return device != "cpu" and bool(os.environ.get("JOYMIGRATE_REHEARSE"))


def time_case(
    kernel: Kernel, case: OperatorCase, dtype: str, device: str, phase: str, rounds: int, tune: bool
) -> Timing:
    """Time one case with every implementation that can run it."""
    grad = phase == "train"
    ready = prepare(case, getattr(torch, dtype), device, grad=grad)
    tensor, shape, variant = kernel.operator.describe(*ready.args, **ready.kwargs)
    names = chipnames.of_device(device), device, dtype_name(tensor.dtype)
    call = Call(*names, shape, variant, grad)
    runs = {
        item.name: runner(function(kernel.operator, item), ready, grad)
        for item in kernel.implementations
        if why_not(item, call) is None and not only_checked(item, call)
    }
    with torch.set_grad_enabled(grad):
        samples = time_interleaved(runs, device, rounds)
    medians = {name: statistics.median(found) * 1e6 for name, found in samples.items()}
    speed_up = {name: ratio(samples[REFERENCE], found) for name, found in samples.items()}
    fastest = winner(samples)
    if tune:
        keep(kernel, call, fastest, medians)
    choice = kernel.choose_for(call)
    return Timing(
        kernel.name, case.name, dtype, phase, call, medians, speed_up, fastest,
        choice.implementation, choice.reason, peaks(kernel, ready, call, medians, phase),
    )  # fmt: skip


def runner(run: Callable[..., Any], ready: ReadyArguments, grad: bool) -> Callable[[], Any]:
    """One call of an implementation, with its backward when `grad`."""
    if not grad:
        return lambda: run(*ready.args, **ready.kwargs)
    seeds: list[Tensor] = []

    def both() -> None:
        outputs = [o for o in flat(run(*ready.args, **ready.kwargs)) if o.requires_grad]
        if not seeds:
            seeds.extend(torch.ones_like(o) for o in outputs)
        torch.autograd.grad(outputs, ready.leaves, seeds, allow_unused=True)

    return both


def time_interleaved(
    runs: dict[str, Callable[[], Any]], device: str, rounds: int
) -> dict[str, list[float]]:
    """Seconds per call: every implementation once a round, in turn."""
    repeats = {}
    for name, run in runs.items():
        run()  # compiles, packs, fills caches
        once = time_call(run, device, 1)
        repeats[name] = max(1, min(1000, round(SAMPLE_S / max(once, 1e-7))))
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        order = list(runs) if number % 2 == 0 else list(reversed(runs))
        for name in order:
            samples[name].append(time_call(runs[name], device, repeats[name]))
    return samples


def time_call(run: Callable[[], Any], device: str, repeats: int) -> float:
    """Seconds per call, the device's queue emptied before and after."""
    # On a CPU the time that this process got, which neighbours on the machine don't lengthen.
    clock = time.process_time if device == "cpu" else time.perf_counter
    synchronise(device)
    start = clock()
    for _ in range(repeats):
        run()
    synchronise(device)
    return (clock() - start) / repeats


def synchronise(device: str) -> None:
    """Wait for everything queued on the device."""
    if device != "cpu":
        torch.get_device_module(device).synchronize()


def ratio(reference: list[float], other: list[float]) -> float:
    """Median over rounds of the reference's time by the other's."""
    return statistics.median(a / b for a, b in zip(reference, other, strict=True))


def winner(samples: dict[str, list[float]]) -> str:
    """The fastest that clearly beats the reference; the reference when none does."""
    reference = samples[REFERENCE]
    best, gain = REFERENCE, CLEARLY
    for name, found in samples.items():
        if name == REFERENCE:
            continue
        gains = sorted(a / b for a, b in zip(reference, found, strict=True))
        if gains[len(gains) // 4] >= 1.0 and statistics.median(gains) >= gain:
            best, gain = name, statistics.median(gains)
    return best


def keep(kernel: Kernel, call: Call, fastest: str, medians: dict[str, float]) -> None:
    """Write the winner of a bucket into the cache of this card."""
    card = tuning_results.card_name(call.device)
    if card is None:
        raise JoyError(f"there is no {call.device} device here")
    entry = tuning_results.TunedEntry(fastest, medians[fastest], medians[REFERENCE], call.shape)
    tuning_results.store(
        tuning_results.path_of(call.chip, card),
        card,
        {tuning_results.key(kernel.name, call): entry},
    )
    forget_choices()


def peaks(
    kernel: Kernel, ready: ReadyArguments, call: Call, medians: dict[str, float], phase: str
) -> dict[str, float]:
    """Percent of the card's peak, forward only: FLOP/s where the operator counts them, else
    bytes per second. Empty for a card whose peaks are not known."""
    chip = all_chips().get(call.chip)
    sku = chip.sku(tuning_results.card_name(call.device) or "") if chip is not None else None
    if sku is None or phase != "infer":
        return {}
    operator = kernel.operator
    if operator.flops is not None:
        peak = sku.peak_tflops.get(call.dtype, 0.0) * 1e6  # per microsecond
        work = operator.flops(*ready.args, **ready.kwargs)
    elif operator.bytes_moved is not None:
        peak = (sku.bandwidth_gb_s or 0.0) * 1e3
        work = operator.bytes_moved(*ready.args, **ready.kwargs)
    else:
        return {}
    return {name: 100 * work / us / peak for name, us in medians.items()} if peak else {}
