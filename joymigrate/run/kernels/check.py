"""Is every implementation that can run here right? Against float64, forward and backward.

Each case runs in each dtype; the first ones also with non-contiguous inputs. The error of a tensor
is max|got - want| / max|want|, `want` being the reference in float64 on the CPU with the same
rounded inputs. What cannot run is a row with the reason, never silence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from joymigrate.run.kernels import chipnames
from joymigrate.run.kernels.arguments import prepare
from joymigrate.run.kernels.operator import Call, Implementation, Operator, OperatorCase, dtype_name
from joymigrate.run.kernels.registry import Kernel
from joymigrate.run.kernels.results import (
    difference,
    first_line,
    gradients,
    outputs_of,
    tensors_of,
)
from joymigrate.run.kernels.samples import Samples
from joymigrate.run.kernels.select import function, why_not

STRIDED_CASES = 2  # so many cases of an operator also run with gaps in their inputs
PHASES = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class CheckRow:
    """The result of one implementation in one dtype and phase: pass, fail or skipped.

    `max_error` is the worst over `cases` cases, `worst` names that case. dtype and phase are None
    where the implementation cannot run here at all.
    """

    op: str
    implementation: str
    status: str
    max_error: float | None = None
    limit: float | None = None
    phase: str | None = None
    reason: str | None = None
    dtype: str | None = None
    device: str = "cpu"
    chip: str = "cpu"
    cases: int = 0
    worst: str | None = None
    calls: str = ""


@dataclass(slots=True)
class WorstError:
    """The worst error of a row so far, and what went wrong."""

    error: float = 0.0
    worst: str | None = None
    cases: int = 0
    failure: str | None = None
    refusal: str | None = None

    def add(self, error: float, name: str) -> None:
        """Count one case."""
        self.cases += 1
        if self.worst is None or error > self.error:
            self.error, self.worst = error, name


def check(kernels: Sequence[Kernel], device: str, dtypes: Sequence[str] = ()) -> Iterator[CheckRow]:
    """Rows for every implementation of `kernels` on a torch device type."""
    for kernel in kernels:
        yield from check_kernel(kernel, device, dtypes)


def check_kernel(kernel: Kernel, device: str, dtypes: Sequence[str] = ()) -> Iterator[CheckRow]:
    """Rows for one operator."""
    operator = kernel.operator
    runnable = []
    for item in kernel.implementations:
        base = CheckRow(
            operator.name,
            item.name,
            "skipped",
            device=device,
            chip=item.chip or chipnames.of_device(device),
            calls=item.calls,
        )
        reason = why_nowhere(operator, item, device)
        if reason is not None:
            yield replace(base, reason=reason)
        else:
            runnable.append((item, base))
    for dtype in operator.dtypes:
        if not dtypes or dtype in dtypes:
            yield from check_dtype(operator, runnable, dtype, device)


def why_nowhere(operator: Operator, item: Implementation, device: str) -> str | None:
    """The reason when this implementation takes no dtype of the operator on this device."""
    reasons = [why_not(replace(item, when=None), call_on(device, d)) for d in operator.dtypes]
    if None in reasons:
        return None
    telling = [r for r in reasons if r and not r.startswith("does not take")]
    return (telling or reasons)[0]


def call_on(device: str, dtype: str) -> Call:
    return Call(chipnames.of_device(device), device, dtype, ())


def check_dtype(
    operator: Operator, runnable: list[tuple[Implementation, CheckRow]], dtype: str, device: str
) -> Iterator[CheckRow]:
    """Rows of one dtype: all implementations see the same inputs and the same true results."""
    phases = PHASES if operator.differentiable else PHASES[:1]
    tallies = {(item, phase): WorstError() for item, _ in runnable for phase in phases}
    for number, case in enumerate(operator.cases(Samples(0))):
        for strided in (False, True) if number < STRIDED_CASES else (False,):
            named = replace(case, name=f"{case.name}, strided") if strided else case
            run_case(operator, runnable, named, dtype, device, strided, tallies)
    limit = operator.tolerance.of(dtype)
    for item, base in runnable:
        for phase in phases:
            yield verdict(base, tallies[item, phase], dtype, phase, limit, item)


def verdict(
    base: CheckRow, tally: WorstError, dtype: str, phase: str, limit: float, item: Implementation
) -> CheckRow:
    """A tally as a row."""
    row = replace(base, dtype=dtype, phase=phase)
    if phase == "backward" and not item.backward:
        return replace(row, reason="has no gradient")
    if tally.failure is not None:
        error = tally.error if math.isfinite(tally.error) and tally.cases else None
        return replace(
            row, status="fail", reason=tally.failure, limit=limit, max_error=error,
            cases=tally.cases, worst=tally.worst,
        )  # fmt: skip
    if tally.cases == 0:
        why = tally.refusal or ("no case has a gradient" if phase == "backward" else "no case")
        return replace(row, reason=why)
    status = "pass" if tally.error <= limit else "fail"
    reason = None if status == "pass" else f"wrong result in case '{tally.worst}'"
    error = tally.error if math.isfinite(tally.error) else None
    return replace(
        row, status=status, max_error=error, limit=limit, reason=reason, cases=tally.cases,
        worst=tally.worst,
    )  # fmt: skip


def run_case(
    operator: Operator,
    runnable: list[tuple[Implementation, CheckRow]],
    case: OperatorCase,
    dtype: str,
    device: str,
    strided: bool,
    tallies: dict[tuple[Implementation, str], WorstError],
) -> None:
    """Run one case with every implementation, and count its errors."""
    torch_dtype = getattr(torch, dtype)
    grad = operator.differentiable and bool(case.grad)
    exact = prepare(case, torch_dtype, grad=grad, exact=True)
    want, seeds = outputs_of(operator.reference, exact), None
    if grad:
        seeds = [
            torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(torch_dtype)
            for o in want
        ]
        true_grads = gradients(want, exact.leaves, [seed.double() for seed in seeds])
    for item, _ in runnable:
        wants = grad and item.backward
        ready = prepare(case, torch_dtype, device, grad=wants, strided=strided)
        tensor, shape, variant = operator.describe(*ready.args, **ready.kwargs)
        call = Call(
            chipnames.of_device(device), device, dtype_name(tensor.dtype), shape, variant, wants
        )
        forward = tallies[item, "forward"]
        refusal = why_not(item, call)
        if refusal is not None:
            forward.refusal = forward.refusal or refusal
            if operator.differentiable:
                tallies[item, "backward"].refusal = forward.refusal
            continue
        try:
            before = [] if operator.mutates else [t.detach().clone() for t in tensors_of(ready)]
            got = outputs_of(function(operator, item), ready)
            forward.add(difference(got, want), case.name)
            if any(not torch.equal(a, b) for a, b in zip(before, tensors_of(ready), strict=False)):
                raise RuntimeError("it changed its input")
            if wants and seeds is not None:
                found = gradients(got, ready.leaves, [s.to(device) for s in seeds])
                tallies[item, "backward"].add(difference(found, true_grads), case.name)
        except NotImplementedError as error:
            forward.refusal = forward.refusal or f"case '{case.name}': {first_line(error)}"
        except Exception as error:  # whatever it raises on inputs it said it takes is a failure
            name = "backward" if wants and forward.worst == case.name else "forward"
            failed = tallies[item, name]
            failed.failure = failed.failure or f"case '{case.name}' raised {first_line(error)}"
