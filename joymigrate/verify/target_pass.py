"""The target's side of teacher-forced passes: its modules on the baseline's inputs, against the
baseline's float64 reference."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import torch

from joymigrate.verify.isolated_pass import BFLOAT, Float64Reference, IsolatedPass
from joymigrate.verify.measure import as_mask_of, relative_error, signature
from joymigrate.verify.module_replay import CutValue
from joymigrate.verify.noise import Noise
from joymigrate.verify.tolerance import EPSILON


@dataclass(slots=True)
class PassResult:
    """What one pass of the target found, as JSON-able rows."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    draws: dict[str, Any] = field(default_factory=dict)
    scalars: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    error: str | None = None
    trace: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)


def examine(
    isolated: IsolatedPass, reference: Float64Reference, dtype: torch.dtype | None
) -> PassResult:
    """The target's side: its modules on the baseline's inputs, against the reference."""
    outcome = PassResult()

    def report(found: CutValue) -> None:
        outcome.rows.append(judge_row(found, reference, dtype))

    try:
        made = isolated.run(report, dtype, reference=reference, trace=True)
    except Exception as error:  # the program's own code, on what the baseline fed
        outcome.error = (
            f"{type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}"
        )
        return outcome
    if dtype is None and not reference.native:
        own_rounding(isolated, reference, outcome)
    outcome.draws = dict(made.draws.log)
    outcome.scalars = {f"{p}#{c}": v for (p, c), v in made.scalars.items()}
    outcome.failures = dict(made.failures)
    outcome.trace = made.trace.calls if made.trace is not None else {}
    outcome.lines = made.lines
    return outcome


def own_rounding(isolated: IsolatedPass, reference: Float64Reference, outcome: PassResult) -> None:
    """How far rounding to the target's own dtype is carried, of the inputs and of every result,
    where the baseline computed in a finer one: added to the rows as `own`. All passes are in
    float32, so that a fault of the target in its own dtype is no excuse for itself."""
    rows = {(r["path"], r["call"], r["kind"], r["leaf"]): r for r in outcome.rows}

    def report(found: CutValue) -> None:
        row, value = rows.get(found.key), reference.value(found.key)
        if row is not None and value is not None and found.tensor is not None:
            row["own"] = max(row.get("own", 0.0), relative_error(found.tensor, value))

    types = {row.get("dtype") for row in outcome.rows}
    half = "float16" in types and "bfloat16" not in types
    grain = EPSILON["float16" if half else "bfloat16"]
    held = reference.holds
    with contextlib.suppress(RuntimeError):
        isolated.run(report, torch.float32, reference=reference, noise=BFLOAT, needs=held)
        for seed in (11, 12):
            with Noise(1.0, seed, grain):
                isolated.run(report, torch.float32, reference=reference, needs=held)


def judge_row(
    found: CutValue, reference: Float64Reference, dtype: torch.dtype | None
) -> dict[str, Any]:
    """One row of the target: its error, and what kind of difference it is when it is large."""
    path, call, kind, leaf = found.key
    made: dict[str, Any] = {
        "path": path,
        "call": call,
        "kind": kind,
        "leaf": leaf,
        "owner": found.owner,
        "owner_call": found.owner_call,
        "order": found.order,
        "missing": found.tensor is None,
    }
    row = reference.rows.get(found.key)
    if found.tensor is None or row is None or row.missing:
        return made
    made["shape"] = list(found.tensor.shape)
    made["dtype"] = str(found.tensor.dtype).removeprefix("torch.")
    value = reference.value(found.key)
    if value is None or list(found.tensor.shape) != row.shape:
        return made
    value = as_mask_of(found.tensor, value)
    error = relative_error(found.tensor, value)
    made["error"] = error
    own = row.error32 if dtype is torch.float32 else row.error
    if error > 2 * max(own, 2.0**-22):
        made["signature"] = signature(found.tensor, value)
    return made
