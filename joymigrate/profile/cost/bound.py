"""The least time that a step can take on a chip, what bounds it, and how it scales over cards.

    compute = sum over dtypes of FLOPs / peak          weights = weight bytes / memory bandwidth
    bound   = max(compute, weights, collectives)       everything else overlaps or is fused
    eager   = sum over operators of max(FLOPs / peak, bytes / bandwidth)

Nothing that computes these FLOPs on this unit is faster than `bound`; `eager` is the time of the
operators one after the other, each at its own peak, with nothing kept in a cache between two.
Collectives of S bytes over n cards at B bytes/s and latency a (Thakur et al. 2005; NCCL's tree):

    ring  2 (n - 1) / n * S / B + 2 (n - 1) * a
    tree  2 * S / B + 2 * ceil(log2 n) * a

Over several levels: reduce-scatter and all-gather inside, all-reduce of the share outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from joymigrate.profile.capture import CapturedOperator
from joymigrate.profile.cost.flops import flops
from joymigrate.profile.cost.peaks import Link, Peaks
from joymigrate.profile.cost.work import BYTES, Work, first_dtype, has_no_kernel, traffic_of
from joymigrate.profile.support import split_name

WINOGRAD = "3x3 convolutions by Winograd need up to 2.25 times fewer operations than are counted"


@dataclass(frozen=True, slots=True)
class Scaling:
    """Data parallel training on `cards` cards, every card with a step of this size.

    Times in µs of one step: everything hidden behind computing, or nothing.
    """

    cards: int
    exchange_us: float
    algorithm: str
    hidden_us: float
    shown_us: float

    @property
    def efficiency(self) -> tuple[float, float]:
        """Least and greatest share of N times the speed of one card, of the bounds."""
        alone = self.shown_us - self.exchange_us
        return alone / self.shown_us, alone / self.hidden_us


@dataclass(frozen=True, slots=True)
class Cost:
    """A step's work against a chip's peaks. Times in µs; None where no figure is documented."""

    work: Work
    peaks: Peaks
    compute_us: float
    weights_us: float | None
    collectives_us: float | None
    bound_us: float
    dominates: str
    eager_us: float
    eager_by: tuple[tuple[str, float, str], ...]  # operator, µs, compute or memory
    measured_us: float | None = None
    scaling: tuple[Scaling, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def mfu(self) -> float:
        """The greatest share of the peak that the step can reach."""
        return self.compute_us / self.bound_us if self.bound_us else 0.0

    @property
    def measured_mfu(self) -> float | None:
        """The share of the peak that a measured step reached."""
        return self.compute_us / self.measured_us if self.measured_us else None


def bound_step(
    work: Work, peaks: Peaks, *, cards: Iterable[int] = (), measured_us: float | None = None
) -> Cost:
    """The lower bound of a step, and of data parallel steps on each number of `cards`."""
    compute = sum(count / peaks.rate(dtype)[0] for dtype, count in work.flops.items()) * 1e6
    weights = work.weight_bytes / (peaks.gb_s * 1e3) if peaks.gb_s else None
    collectives = exchange_time(work, peaks)
    parts = {"compute": compute, "weights": weights or 0.0, "collectives": collectives or 0.0}
    dominates = max(parts, key=lambda name: parts[name])
    least = parts[dominates]
    by = sorted(each(work, peaks), key=lambda row: -row[1])
    return Cost(
        work, peaks, compute, weights, collectives, least, dominates,
        sum(us for _, us, _ in by), tuple(by), measured_us,
        tuple(scale_out(work, peaks, least, n) for n in cards if n > 1 and peaks.links),
        tuple(doubts(work, peaks, least, measured_us, tuple(cards))),
    )  # fmt: skip


def each(work: Work, peaks: Peaks) -> Iterable[tuple[str, float, str]]:
    """Every kind of operator as kernels of its own."""
    for part in work.parts:
        yield (part.name, *bound_kernel(part.flops, part.bytes, part.dtype, peaks))


def bound_kernel(count: int, moved: int, dtype: str, peaks: Peaks) -> tuple[float, str]:
    """The least µs of `count` operations on `moved` bytes, and whether compute or memory binds."""
    compute = count / peaks.rate(dtype)[0] * 1e6
    memory = moved / (peaks.gb_s * 1e3) if peaks.gb_s else 0.0
    return max(compute, memory), "compute" if compute >= memory else "memory"


def bound_operator(operator: CapturedOperator, peaks: Peaks) -> float:
    """The least µs of one step's calls of an operator, as kernels of its own."""
    if has_no_kernel(operator):
        return 0.0
    moved = traffic_of(operator, split_name(operator.op)[1], None)
    count = flops(operator, peaks.formulas) or 0
    return operator.calls * bound_kernel(count, moved, first_dtype(operator), peaks)[0]


def doubts(
    work: Work, peaks: Peaks, least: float, measured_us: float | None, cards: tuple[int, ...]
) -> Iterable[str]:
    """What is not in the figures."""
    for dtype in work.flops:
        if work.flops[dtype] and not peaks.rate(dtype)[1]:
            yield (
                f"no peak for {dtype} is documented: the fastest type's stands in, "
                "so the true bound is higher"
            )
    if peaks.gb_s is None:
        yield "no memory bandwidth is documented: memory does not count"
    if cards and not peaks.links:
        yield "no link between cards is documented: nothing is said about several cards"
    for name, calls in sorted(work.uncounted.items()):
        yield f"{name} ({calls} calls): no formula, its operations do not count"
    if any("convolution" in part.name for part in work.parts):
        yield WINOGRAD
    if not any(work.flops.values()):
        yield "no matrix product, convolution or attention with shapes was recorded"
    if measured_us is not None and measured_us < least:
        yield "the measured step is shorter than the bound: another step, chip or type was measured"


def exchange_time(work: Work, peaks: Peaks) -> float | None:
    """Time of the collectives that were recorded; None where there are none or no links."""
    if not work.collectives or not peaks.links:
        return None
    total = 0.0
    for kind, size in work.collectives.items():
        once = all_reduce(size, max(2, work.cards), peaks.links)[0]
        total += once if kind == "all_reduce" else once / 2
    return total


def scale_out(work: Work, peaks: Peaks, least: float, cards: int) -> Scaling:
    """Gradients of all weights, summed once a step. Inference exchanges nothing."""
    dtype = max(work.flops, key=lambda name: work.flops[name], default="float32")
    size = work.weights * BYTES.get(dtype, 4) if work.trains else 0
    us, algorithm = all_reduce(size, cards, peaks.links) if size else (0.0, "none")
    return Scaling(cards, us, algorithm, max(least, us), least + us)


def all_reduce(size: float, cards: int, links: tuple[Link, ...]) -> tuple[float, str]:
    """µs and algorithm of the faster of ring and tree, level by level."""
    total, names = 0.0, []
    for place, link in enumerate(links):
        inside = 1 if place == 0 else links[place - 1].cards
        groups = math.ceil(min(cards, link.cards) / inside)
        if groups > 1:
            us, name = min(ring(size, groups, link), tree(size, groups, link))
            total += us
            names.append(name)
        size /= max(1, groups)
        if cards <= link.cards:
            break
    return total, " + ".join(names) or "none"


def ring(size: float, cards: int, link: Link) -> tuple[float, str]:
    """Every card sends 2 (n - 1) / n of the data."""
    share = 2 * (cards - 1)
    return share / cards * size / (link.gb_s * 1e3) + share * link.latency_us, "ring"


def tree(size: float, cards: int, link: Link) -> tuple[float, str]:
    """Up and down a tree, in pieces."""
    hops = 2 * math.ceil(math.log2(cards))
    return 2 * size / (link.gb_s * 1e3) + hops * link.latency_us, "tree"
