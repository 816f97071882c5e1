"""The verdict on quantised weights: what the written files compute, against the plain model.

Both models run layer by layer over the same samples in float32, the quantised one with the kernels
that serve it. Perplexity and first choices are those of the next token at every place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from joymigrate.errors import JoyError
from joymigrate.run import kernels
from joymigrate.run.train.formats.open import QuantisedReader, open_quantised
from joymigrate.run.train.formats.stored_linears import Int8Linear, Linear
from joymigrate.run.train.quantise.data import CalibrationSamples
from joymigrate.run.train.quantise.skeleton import Skeleton, run_layer
from joymigrate.verify.model import (
    Difference,
    FirstDivergence,
    Outcome,
    RecordCoverage,
    RecordStatus,
    StageResult,
    Verdict,
    verdict_json,
)

STAGE = "S7"
# Good and failing limits of three figures: growth of perplexity, mean divergence in nats, and the
# share of places where both models choose the same token, or where the plain one all but ties (its
# two choices are within TIE nats). Between good and failing a figure is a warning.
LIMITS: dict[str, dict[str, tuple[float, float]]] = {
    "w8a8": {"perplexity_ratio": (1.02, 1.05), "kl": (0.02, 0.05), "top1": (0.97, 0.90)},
    "w4a16": {"perplexity_ratio": (1.08, 1.15), "kl": (0.08, 0.20), "top1": (0.92, 0.60)},
}
TIE = 0.2
PLACES = 32  # fewer say nothing
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class QuantiseSums:
    """Sums over all places."""

    places: int = 0
    plain_nll: float = 0.0
    nll: float = 0.0
    agreeing: int = 0
    ties: int = 0
    kl: float = 0.0
    layers: list[tuple[str, float, float]] = field(default_factory=list)  # own, grown

    @property
    def perplexities(self) -> tuple[float, float]:
        """Of the plain model, and of the quantised one."""
        count = max(1, self.places)
        return math.exp(self.plain_nll / count), math.exp(min(700.0, self.nll / count))

    @property
    def growth(self) -> float:
        """Quantised over plain perplexity."""
        return math.exp(min(700.0, (self.nll - self.plain_nll) / max(1, self.places)))

    @property
    def top1(self) -> float:
        """Share of places with the same first choice."""
        return self.agreeing / max(1, self.places)

    @property
    def top1_or_tie(self) -> float:
        """The same, where a tie of the plain model may go either way."""
        return (self.agreeing + self.ties) / max(1, self.places)


class Stored(nn.Module):
    """A quantised linear, computed by the kernel that the engine serves it with."""

    def __init__(self, linear: Linear, device: torch.device) -> None:
        super().__init__()
        eight = isinstance(linear, Int8Linear)
        self.multiply = kernels.op("quant_matmul" if eight else "int4_matmul")
        made: Any
        if isinstance(linear, Int8Linear):
            about = (linear.bias, linear.x_scale, linear.x_offset)
            made = kernels.Int8Weight(linear.values, linear.scale, *about)
        else:
            made = kernels.Int4Weight(linear.values, linear.scale, linear.zero, linear.bias)
        self.weight = made.placed(lambda tensor: tensor.to(device))

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(x, self.weight)  # type: ignore[no-any-return]


class QuantisedSkeleton(Skeleton):
    """A skeleton whose layers are filled from quantised weights."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        super().__init__(folder, device)
        found = open_quantised(folder, self.source)
        if found is None:
            raise JoyError("these weights are not quantised", where=str(folder))
        self.reader: QuantisedReader = found
        self.linears = [
            [name for name, m in layer.named_modules() if isinstance(m, nn.Linear)]
            for layer in self.layers
        ]

    def filled(self, i: int) -> nn.Module:
        """Layer i with its weights, quantised linears in their stored form."""
        layer = self.layers[i]
        for name in self.linears[i]:
            stored = self.reader.linear(f"{self.prefix(i)}.{name}")
            if stored is not None:
                path, _, last = name.rpartition(".")
                setattr(layer.get_submodule(path), last, Stored(stored, self.device))
        return super().filled(i)

    def emptied(self, i: int) -> None:
        """Give up the weights of layer i, for good."""
        super().emptied(i)
        for name in self.linears[i]:
            path, _, last = name.rpartition(".")
            setattr(self.layers[i].get_submodule(path), last, nn.Identity())


def judge(
    model: Path,
    quantised: Path,
    samples: CalibrationSamples,
    *,
    device: str = "cpu",
    most_perplexity: float | None = None,
    least_top1: float | None = None,
    progress: Progress | None = None,
) -> tuple[Verdict, dict[str, Any]]:
    """Compare a quantised folder with the plain model; the verdict and its document."""
    with torch.inference_mode():
        plain, other = Skeleton(model, device), QuantisedSkeleton(quantised, device)
        figures = compare(plain, other, samples, progress)
    scheme = other.reader.scheme
    limits = LIMITS["w4a16" if "w4a16" in scheme else "w8a8"]
    records, reasons = judge_figures(figures, limits, most_perplexity, least_top1)
    failed = [one for one in records if one.status.failed]
    outcome = Outcome.FAIL if failed else Outcome.PASS
    if figures.places < PLACES and outcome is Outcome.PASS:
        outcome = Outcome.INCONCLUSIVE
        reasons.append(f"only {figures.places} places were judged, {PLACES} are the least")
    reason = "; ".join(reasons) or None
    count = len(figures.layers)
    found = Verdict(
        outcome,
        STAGE,
        parting(failed[0], figures) if failed else None,
        RecordCoverage(1.0, figures.places, figures.places),
        tuple(records),
        (StageResult(STAGE, outcome, count, count, reason=reason),),
        reason=reason,
    )
    document = verdict_json(found)
    document["quantise"] = as_json(figures, samples, scheme, other.reader.format)
    return found, document


def compare(
    plain: Skeleton, other: Skeleton, samples: CalibrationSamples, progress: Progress | None
) -> QuantiseSums:
    """Both models over all samples."""
    if len(plain.layers) != len(other.layers):
        raise JoyError(f"{len(other.layers)} layers are compared with {len(plain.layers)}")
    figures = QuantiseSums()
    heard = [plain.listen(ids) for ids in samples.ids]
    calls = [call for _, call in heard]
    want = [hidden for hidden, _ in heard]
    got = [other.listen(ids)[0] for ids in samples.ids]
    count = len(plain.layers)
    for i in range(count):
        if progress is not None:
            progress(i, count)
        here = [call[i] for call in calls]
        layer = other.filled(i)
        alone = [run_layer(layer, h, call) for h, call in zip(want, here, strict=True)]
        got = [run_layer(layer, h, call) for h, call in zip(got, here, strict=True)]
        other.emptied(i)
        layer = plain.filled(i)
        after = [run_layer(layer, h, call) for h, call in zip(want, here, strict=True)]
        plain.emptied(i)
        own = distance(alone, after, want)
        want = after
        figures.layers.append((plain.prefix(i), own, distance(got, want)))
    for ids, h, g in zip(samples.ids, want, got, strict=True):
        add(figures, ids, plain.logits(h), other.logits(g))
    return figures


def distance(got: list[Tensor], want: list[Tensor], before: list[Tensor] | None = None) -> float:
    """‖got - want‖ / ‖want‖ over all samples; with `before`, relative to what the layer adds."""
    wrong = sum(float((g - w).square().sum()) for g, w in zip(got, want, strict=True))
    parts = want if before is None else [w - b for w, b in zip(want, before, strict=True)]
    return math.sqrt(wrong / (sum(float(part.square().sum()) for part in parts) or 1.0))


def add(figures: QuantiseSums, ids: tuple[int, ...], want: Tensor, got: Tensor) -> None:
    """One sample's places: every token but the first was to be predicted."""
    told = torch.tensor(ids[1:], device=want.device)
    p, q = F.log_softmax(want[:-1], -1), F.log_softmax(got[:-1], -1)
    figures.places += len(told)
    figures.plain_nll -= float(p.gather(1, told[:, None]).double().sum())
    figures.nll -= float(q.gather(1, told[:, None]).double().sum())
    figures.kl += float((p.exp() * (p - q)).double().sum())
    first, other = p.argmax(-1), q.argmax(-1)
    same = first == other
    behind = (p.gather(1, first[:, None]) - p.gather(1, other[:, None])).squeeze(1)
    figures.agreeing += int(same.sum())
    figures.ties += int((~same & (behind <= TIE)).sum())


def judge_figures(
    figures: QuantiseSums,
    limits: Mapping[str, tuple[float, float]],
    most_perplexity: float | None,
    least_top1: float | None,
) -> tuple[list[Difference], list[str]]:
    """The figures as records, and what is wrong in words."""
    limits = dict(limits)
    if most_perplexity is not None:
        limits["perplexity_ratio"] = (most_perplexity, most_perplexity)
    if least_top1 is not None:
        limits["top1"] = (least_top1, least_top1)
    divergence = figures.kl / max(1, figures.places)
    growth, top1 = figures.growth, figures.top1_or_tie
    records = [
        limit_figure("perplexity_ratio", growth, *limits["perplexity_ratio"]),
        limit_figure("kl", divergence, *limits["kl"]),
        limit_figure("top1_disagreement", 1 - top1, *(1 - limit for limit in limits["top1"])),
    ]
    words = (
        f"perplexity grows {growth:.3f} times, at most {limits['perplexity_ratio'][1]} is allowed",
        f"the outputs diverge by {divergence:.3g} nats, at most {limits['kl'][1]} is allowed",
        f"first choices agree at {top1:.1%} of places, {limits['top1'][1]:.0%} is the least",
    )
    pairs = zip(records, words, strict=True)
    reasons = [text for one, text in pairs if one.status.failed]
    for name, own, _ in figures.layers:
        finite = math.isfinite(own)
        status = RecordStatus.PASS if finite else RecordStatus.NAN_MISMATCH
        records.append(record(name, "relative_l2", own, None, status))
        if not finite:
            reasons.append(f"{name} gives numbers that are not finite")
    return records, reasons


def limit_figure(metric: str, value: float, good: float, bad: float) -> Difference:
    """One figure of the model, the smaller the better; NaN fails."""
    status = (
        RecordStatus.PASS
        if value <= good
        else RecordStatus.WARN
        if value <= bad
        else RecordStatus.FAIL
    )
    return record("model", metric, value, bad, status)


def record(
    module: str, metric: str, value: float, limit: float | None, status: RecordStatus
) -> Difference:
    """One figure."""
    return Difference(module, 0, "forward", None, metric, value, limit, status, STAGE)


def parting(failed: Difference, figures: QuantiseSums) -> FirstDivergence:
    """The layer that errs most by itself, beside the figure that failed."""
    worst = max(figures.layers, key=lambda layer: layer[1], default=("model", 0.0, 0.0))
    return FirstDivergence(
        worst[0], 0, "forward", None, failed.metric, failed.value, failed.limit, STAGE,
        cause="quantisation", evidence=f"{worst[0]} errs most by itself: {worst[1]:.3g}",
    )  # fmt: skip


def as_json(
    figures: QuantiseSums, samples: CalibrationSamples, scheme: str, format: str
) -> dict[str, Any]:
    """The object `quantise`."""
    before, after = figures.perplexities
    return {
        "scheme": scheme,
        "format": format,
        "perplexity": {"plain": before, "quantised": after, "ratio": figures.growth},
        "top1": {
            "agreement": figures.top1,
            "or_tie": figures.top1_or_tie,
            "tie_nats": TIE,
        },
        "kl": figures.kl / max(1, figures.places),
        "places": figures.places,
        "samples": len(samples.ids),
        "errors": [
            {"layer": name, "own": own, "accumulated": grown} for name, own, grown in figures.layers
        ],
    }
