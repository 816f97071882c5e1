"""One failure per fault: what an earlier failure explains becomes a warning. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from joymigrate.verify import (
    free,
    rest_model,
)
from joymigrate.verify.bundle import Rank
from joymigrate.verify.display import Display
from joymigrate.verify.findings import Findings, stage
from joymigrate.verify.identity import LOADED
from joymigrate.verify.model import (
    Cause,
    Difference,
    RecordStatus,
)
from joymigrate.verify.module_stage import JudgedDifference
from joymigrate.verify.pairing import Pairing


def is_batch(row: Difference) -> bool:
    """Whether a row is about what a model was given."""
    return (row.op or "").startswith("batch")


def consequences(rows: list[Difference], found: Findings) -> list[Difference]:
    """What an earlier failure explains is a warning."""
    failed = next((row for row in found.rows if row.status.failed), None)
    if failed is None:
        return rows
    return [
        replace(row, status=RecordStatus.WARN, consequence_of=failed.module)
        if row.status.failed
        else row
        for row in rows
    ]


def other_modes(ours: Rank, theirs: Rank, pairing: Pairing) -> dict[str, str]:
    """Modules that are in another training mode than in the baseline, in a recorded step, and
    words for it."""
    made: dict[str, str] = {}
    for step in sorted(set(ours.steps) & set(theirs.steps)):
        a, b = (rank.facts(step).get("training", {}) for rank in (ours, theirs))
        for place, flags in a.items():
            other = b.get(pairing.names.get(place, place), flags)
            on = next((y for x, y in zip(flags, other, strict=False) if x != y), None)
            if on is not None:
                made[place] = free.tell_mode(on)
    return made


def in_other_mode(judged: list[JudgedDifference], other: Mapping[str, str], view: Display) -> None:
    """What a module computes in another mode is the fault of the outermost module in that mode."""
    for item in judged:
        root, _, path = item.place.partition(":")
        parts = path.split(".")
        above = [f"{root}:{'.'.join(parts[:n])}" for n in range(len(parts) + 1)]
        first = next((place for place in above if place in other), None)
        if first is not None and item.difference.status.failed:
            words = other[first]
            item.place, item.cause = first, Cause("training mode", words, "fact")
            item.difference = replace(item.difference, module=view(first), reason=words)


def one_failure_per_fault(rows: list[JudgedDifference], before: set[str]) -> list[JudgedDifference]:
    """Keep a failure where a fault is first seen; what is explained by it becomes a warning.

    Cuts keep errors from travelling, so what is left to explain is: other values and other calls
    of the same module, its gradients, other modules of the same class, and one shortened
    arithmetic seen by every module. `before` are modules whose weights are not the baseline's.
    """
    failed = [item for item in rows if item.difference.status.failed]
    failed.sort(key=lambda item: (precedence(item.difference), item.difference.order))
    culprits: list[JudgedDifference] = []
    explained: dict[int, str] = {}
    for item in failed:
        known = next((c for c in culprits if explains(c, item)), None)
        if item.difference.module in before:
            explained[id(item)] = item.difference.module
        elif known is None:
            culprits.append(item)
        else:
            explained[id(item)] = known.difference.module
    for item in failed:
        if id(item) in explained:
            item.difference = replace(
                item.difference, status=RecordStatus.WARN, consequence_of=explained[id(item)]
            )
    return rows


def precedence(row: Difference) -> int:
    """Forward in fp32, gradients in fp32, then what only the native dtype shows."""
    return {"S3": 0, "S4": 1}.get(row.stage, 2)


def explains(culprit: JudgedDifference, item: JudgedDifference) -> bool:
    """Whether one failure is the reason of another."""
    if culprit.place == item.place or culprit.kind == item.kind:
        return True
    roots = {one.place.partition(":")[0] for one in (culprit, item)}
    if len(roots) == 1 and {one.difference.metric for one in (culprit, item)} == {"shape"}:
        return True  # another shape goes on through the model, and through no other one
    return culprit.rounding and item.rounding


def of_other_shape(rows: list[JudgedDifference], found: Findings) -> None:
    """Shapes in a model follow from those of a batch that is another one already (S1)."""
    given = next((row for row in found.rows if row.status.failed and is_batch(row)), None)
    for item in rows:
        row = item.difference
        if given is not None and row.status.failed and row.metric == "shape":
            item.difference = replace(row, status=RecordStatus.WARN, consequence_of=given.module)


def after_module(found: Findings) -> None:
    """Data of a step after one in which a module computed something wrong may follow from it: a
    program samples by what its models return."""
    wrong = next((r for r in found.rows if r.status.failed and r.stage in ("S3", "S4")), None)
    if wrong is None:
        return
    found.rows = [
        replace(row, status=RecordStatus.WARN, consequence_of=wrong.module)
        if row.stage == "S1"
        and row.status.failed
        and is_batch(row)
        and (row.step or 0) > (wrong.step or 0)
        else row
        for row in found.rows
    ]
    kept = [row for row in found.rows if row.stage == "S1"]
    found.stages = [stage("S1", kept) if s.stage == "S1" else s for s in found.stages]


def given_before(found: Findings, rows: list[Difference]) -> None:
    """What the rest of a step shows follows from what a model was given in an earlier one."""
    given = next((r for r in rows if r.status.failed and r.phase == "input"), None)
    failed = [row for row in found.rows if row.status.failed]
    if given is None or not failed:
        return
    at = given.step or 0
    if any(row.stage != rest_model.STAGE or (row.step or 0) <= at for row in failed):
        return
    found.rows = [
        replace(row, status=RecordStatus.WARN, consequence_of=given.module)
        if row.status.failed
        else row
        for row in found.rows
    ]
    kept = [row for row in found.rows if row.stage == rest_model.STAGE]
    found.stages = [
        replace(stage(s.stage, kept), reason=s.reason) if s.stage == rest_model.STAGE else s
        for s in found.stages
    ]


def overtaken(found: Findings, rows: list[Difference]) -> None:
    """A state of another step that is loaded later in the program follows from what went wrong in
    an earlier step; so does the rest of a step after calls that were made otherwise."""
    first = min((r.step or 0 for r in rows if r.status.failed), default=None)
    called = any(r.status.failed and r.op == "mode" and (r.step or 0) == first for r in rows)
    late = [
        row.status.failed and (row.op == LOADED or (called and row.stage == rest_model.STAGE))
        for row in found.rows
    ]
    if first is None or not any(late):
        return
    culprit = next(r for r in rows if r.status.failed and (r.step or 0) == first)
    other_mode = called and "training mode" in str(culprit.reason)  # results come after the call
    found.rows = [
        replace(row, status=RecordStatus.WARN, consequence_of=culprit.module)
        if there and (row.step or 0) >= first + (row.op == LOADED or not other_mode)
        else row
        for row, there in zip(found.rows, late, strict=True)
    ]
    kept = [row for row in found.rows if row.stage == "S1"]
    found.stages = [stage("S1", kept) if s.stage == "S1" else s for s in found.stages]


def alone(rows: list[Difference], same: Any) -> list[Difference]:
    """The first failure stays; those that it explains become warnings."""
    first = next((row for row in rows if row.status.failed), None)
    if first is None:
        return rows
    return [
        replace(row, status=RecordStatus.WARN, consequence_of=first.module)
        if row is not first and row.status.failed and same(first, row)
        else row
        for row in rows
    ]


def under_setting(setting: Difference, found: Findings) -> None:
    """What an optimiser is told is a fact: gradients and state that differ follow from it, and what
    a program chooses by its models, or computes its data from, in later steps."""
    follows = ("gradients", "state", "optimiser", "schedule")

    def later(row: Difference) -> bool:
        return row.phase in ("input", "output") or row.op == "given"

    found.rows = [
        replace(row, status=RecordStatus.WARN, consequence_of=setting.module)
        if row.status.failed
        and row.stage == rest_model.STAGE
        and (row.phase in follows or row.op == "accumulated" or later(row))
        and (row.step or 0) >= (setting.step or 0) + later(row)
        else row
        for row in found.rows
    ]
    rows = [row for row in found.rows if row.stage == rest_model.STAGE]
    found.stages = [
        replace(stage(s.stage, rows), reason=s.reason) if s.stage == rest_model.STAGE else s
        for s in found.stages
    ]
