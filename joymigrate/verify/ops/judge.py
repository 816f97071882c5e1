"""One result of an operator, target against golden and reference → a status with its figures."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from joymigrate.language import Text
from joymigrate.verify.model import RecordStatus
from joymigrate.verify.tolerance import OperatorLimit

EPSILON = 1e-7  # in the denominator of relative errors: hicann/opbase, MERE and MARE


@dataclass(frozen=True, slots=True)
class ReplayFinding:
    """What was found about one result. `value` and `limit` belong to `metric`."""

    status: RecordStatus
    metric: str
    value: float | None
    limit: float | None
    target_error: float | None = None  # relative RMSE against the golden
    reference_error: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one side against the golden, all relative."""

    max: float
    mean: float
    rmse: float
    diff1: float
    diff4: float

    @property
    def diff2(self) -> float:
        """Another name of the relative RMSE."""
        return self.rmse


def judge(
    target: torch.Tensor,
    reference: torch.Tensor | None,
    golden: torch.Tensor,
    limit: OperatorLimit,
) -> ReplayFinding:
    """The status of one result. `golden` is float64 (or whole numbers), all on the CPU."""
    model = golden if reference is None else reference
    if target.shape != model.shape:
        return ReplayFinding(
            RecordStatus.FAIL,
            "shape",
            None,
            None,
            reason=Text(
                "{target} instead of {reference}", target=shape(target), reference=shape(model)
            ),
        )
    if reference is not None and target.dtype != reference.dtype:
        wide, narrow = (str(t.dtype).removeprefix("torch.") for t in (reference, target))
        if limit.narrowed.get(wide) == narrow:
            return tell_narrowed(judge(target, reference.to(target.dtype), golden, limit), limit)
        reason = Text(
            "{target} instead of {reference}", target=target.dtype, reference=reference.dtype
        )
        return ReplayFinding(RecordStatus.FAIL, "dtype", None, None, reason=reason)
    if target.numel() == 0:
        return ReplayFinding(RecordStatus.PASS, "shape", 0.0, 0.0)
    if reference is not None and identical(target, reference):
        return ReplayFinding(RecordStatus.IDENTICAL, "bits", 0.0, 0.0, 0.0, 0.0)
    if not target.is_floating_point() and not target.is_complex():
        share = float((target != model.to(target.dtype)).double().mean())
        return ReplayFinding(RecordStatus.FAIL, "share of unequal elements", share, 0.0)
    return judge_floats(target, reference, golden, limit)


def tell_narrowed(finding: ReplayFinding, limit: OperatorLimit) -> ReplayFinding:
    """The finding on a result whose type the device does not keep: never a plain pass."""
    if finding.status.failed:
        return finding
    reason = Text(
        "{wide} becomes {narrow} on the device, with the digits of that: {source}",
        wide=Text.join(", ", tuple(limit.narrowed)),
        narrow=Text.join(", ", tuple(limit.narrowed.values())),
        source=limit.narrowed_source,
    )
    return replace(finding, status=RecordStatus.WARN, reason=reason)


def judge_floats(
    target: torch.Tensor, reference: torch.Tensor | None, golden: torch.Tensor, limit: OperatorLimit
) -> ReplayFinding:
    """Non-finite values first, then errors."""
    t, g = real(target), real(golden)
    rounded = real(golden.to(target.dtype))
    r = rounded if reference is None else real(reference)
    stray = kind(t) != kind(rounded)
    if reference is not None:
        stray &= kind(t) != kind(r)
        stray &= kind(r) == kind(rounded)  # where the reference strays itself, nothing is known
    if bool(stray.any()):
        share = float(stray.double().mean())
        return ReplayFinding(
            RecordStatus.NAN_MISMATCH, "share of inf and nan that differ", share, 0.0
        )
    finite = torch.isfinite(t) & torch.isfinite(g) & torch.isfinite(r) & torch.isfinite(rounded)
    t, r, g = t[finite], r[finite], g[finite]
    if t.numel() == 0:
        return ReplayFinding(RecordStatus.PASS, "inf and nan", 0.0, 0.0)
    small = torch.finfo(target.dtype).tiny if target.is_floating_point() else 0.0
    flushed = (t == 0) & (g.abs() < small)
    t = torch.where(flushed, g, t)
    if limit.exact and reference is not None:
        share = float((t != r).double().mean())
        if share:
            return ReplayFinding(RecordStatus.FAIL, "share of unequal elements", share, 0.0)
        return flush_note(ReplayFinding(RecordStatus.PASS, "bits", 0.0, 0.0), flushed)
    found = by_ratio(t, r, g, limit, double=reference is not None)
    return flush_note(found, flushed)


def flush_note(finding: ReplayFinding, flushed: torch.Tensor) -> ReplayFinding:
    """Says that numbers below the smallest normal one became zero."""
    if not bool(flushed.any()) or finding.status.failed:
        return finding
    return replace(finding, reason=finding.reason or "subnormal results are zero on the target")


def by_ratio(
    t: torch.Tensor, r: torch.Tensor, g: torch.Tensor, limit: OperatorLimit, *, double: bool
) -> ReplayFinding:
    """Two benchmarks where there is a reference, the single one else; see `docs/verify-ops.md`."""
    mine, theirs = errors(t, g), errors(r, g)
    single, single_metric, single_value, single_limit = by_single(t, g, mine, limit)
    base = ReplayFinding(
        RecordStatus.PASS, single_metric, single_value, single_limit, mine.rmse, theirs.rmse
    )
    if not double:
        return base if single else replace(base, status=RecordStatus.FAIL)
    ratios = {
        name: (getattr(mine, name) / max(getattr(theirs, name), limit.floor), allowed)
        for name, allowed in limit.ratios.items()
        if name != "diff4"  # a bias is reported, not gated: rounding errors are correlated by row
    }
    name, (value, allowed) = max(ratios.items(), key=lambda item: item[1][0] / item[1][1])
    spread = {"rmse", "diff1", "diff2"} & ratios.keys()
    beyond = any(ratios[one][0] > ratios[one][1] for one in spread)
    found = replace(
        base, metric=Text("{name} error / reference's", name=name), value=value, limit=allowed
    )
    if beyond:
        worst = max(spread, key=lambda one: ratios[one][0] / ratios[one][1])
        value, allowed = ratios[worst]
        return replace(
            found,
            status=RecordStatus.FAIL,
            metric=Text("{name} error / reference's", name=worst),
            value=value,
            limit=allowed,
            reason=cause(mine.rmse, limit.dtype),
        )
    if value > allowed:
        # Relative errors of single elements near zero are large on every platform.
        if single:
            return replace(found, status=RecordStatus.WARN, reason="single elements near zero")
        return replace(found, status=RecordStatus.FAIL, reason=cause(mine.rmse, limit.dtype))
    notice = mine.rmse / max(theirs.rmse, limit.notice_floor)
    if notice > limit.notice:
        return replace(
            found, status=RecordStatus.WARN, metric="rmse error / reference's", value=notice,
            limit=limit.notice,
            reason=cause(mine.rmse, limit.dtype) or "less precise than the reference",
        )  # fmt: skip
    return found


def by_single(
    t: torch.Tensor, g: torch.Tensor, mine: Errors, limit: OperatorLimit
) -> tuple[bool, str, float, float]:
    """(passed, metric, value, limit) of the target's error alone."""
    allowed = limit.single
    if limit.method == "diff":
        worst = 0.0
        found = (True, "diff1", mine.diff1, float(allowed.get("diff1", math.inf)))
        for name, most in allowed.items():
            value = diff3(t, g, limit.small) if name == "diff3" else getattr(mine, name)
            excess = value / most if most else (math.inf if value else 0.0)
            if excess >= worst:
                worst = excess
                found = (excess <= 1, name, value, float(most))
        return found
    error = (t - g).abs()
    bound = allowed["atol"] + allowed["rtol"] * g.abs()
    share = float((error <= bound).double().mean())
    if limit.method == "matched":
        ulp = 32 * torch.finfo(torch.float32).eps * g.abs().max()
        top = max(float(allowed["max_abs"]), float(ulp))
        if float(error.max()) > top:
            return False, "max_abs", float(error.max()), top
        return share >= allowed["matched"], "share outside", 1 - share, 1 - allowed["matched"]
    return share == 1, "share outside", 1 - share, 0.0


def errors(values: torch.Tensor, golden: torch.Tensor) -> Errors:
    """All error figures of one side."""
    signed = values - golden
    error, size = signed.abs(), golden.abs()
    relative = error / (size + EPSILON)
    norm = float(torch.linalg.vector_norm(golden)) or EPSILON
    total = float(size.sum()) or EPSILON
    differing = int((error > 0).sum())
    positive = int((signed > 0).sum())
    return Errors(
        max=float(relative.max()),
        mean=float(relative.mean()),
        rmse=float(torch.linalg.vector_norm(error)) / norm,
        diff1=float(error.sum()) / total,
        diff4=max(positive, differing - positive) / differing if differing else 0.5,
    )


def diff3(t: torch.Tensor, g: torch.Tensor, small: float) -> float:
    """Largest relative error; the absolute one where the golden is small."""
    error = (t - g).abs()
    return float(torch.where(g.abs() < small, error, error / g.abs().clamp_min(small)).max())


def cause(rmse: float, dtype: str) -> str | None:
    """What an error of this size looks like."""
    if dtype == "float32" and 2.0**-13.5 < rmse < 2.0**-10:
        return "as large as if inputs were rounded to 11 bits (TF32, HF32, float16)"
    if dtype == "float32" and 2.0**-10 <= rmse < 2.0**-7.5:
        return "as large as if inputs were rounded to 8 bits (bfloat16)"
    if rmse > 0.5:
        return "the values have little to do with each other"
    return None


def kind(values: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 inf, 2 -inf, 3 NaN."""
    found = torch.zeros(values.shape, dtype=torch.int8)
    found[values == math.inf] = 1
    found[values == -math.inf] = 2
    found[torch.isnan(values)] = 3
    return found


def real(values: torch.Tensor) -> torch.Tensor:
    """Flat float64; complex numbers as pairs."""
    if values.is_complex():
        values = torch.view_as_real(values.to(torch.complex128))
    return values.to(torch.float64).reshape(-1)


def identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal values; NaN equals NaN."""
    return bool(((a == b) | (torch.isnan(a) & torch.isnan(b))).all())


def shape(tensor: torch.Tensor) -> str:
    """`4x64`."""
    return "x".join(map(str, tensor.shape)) or "a scalar"


def as_tensor(value: Any) -> torch.Tensor:
    """A result on the CPU; scalars as tensors without dimension. Quantised ones as numbers."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu").resolve_conj().resolve_neg()
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
