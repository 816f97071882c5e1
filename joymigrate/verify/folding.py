"""One failure per fault: what an earlier failure explains becomes a warning. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from joymigrate.verify import free, rest_stage
from joymigrate.verify.bundle import Rank
from joymigrate.verify.display import Display
from joymigrate.verify.findings import Findings
from joymigrate.verify.identity import LOADED
from joymigrate.verify.model import Cause, Difference, RecordStatus
from joymigrate.verify.module_stage import JudgedDifference
from joymigrate.verify.pairing import Pairing


def is_batch(row: Difference) -> bool:
    """Whether a row is about what a model was given."""
    return (row.op or "").startswith("batch")


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
            cause = Cause("training mode", other[first], "fact", item.difference.cause.lines)
            item.place = first
            item.difference = replace(
                item.difference, module=view(first), reason=other[first], cause=cause
            )


def one_failure_per_fault(rows: list[JudgedDifference], before: set[str]) -> list[Difference]:
    """Keep a failure where a fault is first seen; what is explained by it becomes a warning.

    Cuts keep errors from travelling, so what is left to explain is: other values and other calls
    of the same module, its gradients, other modules of the same class, and one shortened
    arithmetic seen by every module. `before` are modules whose weights are not the baseline's.
    """
    failed = [item for item in rows if item.difference.status.failed]
    failed.sort(key=lambda item: (item.difference.stage, item.difference.order))
    culprits: list[JudgedDifference] = []
    for item in failed:
        row = item.difference
        known = next((c.difference.module for c in culprits if explains(c, item)), None)
        known = row.module if row.module in before else known
        if known is None:
            culprits.append(item)
        else:
            item.difference = replace(row, status=RecordStatus.WARN, consequence_of=known)
    return [item.difference for item in rows]


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
    wrong = found.failed("S3", "S4")
    if wrong is not None:
        at = wrong.step or 0
        found.follow(wrong, lambda row: is_batch(row) and (row.step or 0) > at)


def given_before(found: Findings, rows: list[Difference]) -> None:
    """What the rest of a step shows follows from what a model was given in an earlier one."""
    given = next((r for r in rows if r.status.failed and r.phase == "input"), None)
    if given is None:
        return
    failed, at = [row for row in found.rows if row.status.failed], given.step or 0
    if all(row.stage == rest_stage.STAGE and (row.step or 0) > at for row in failed):
        found.follow(given)


def overtaken(found: Findings, rows: list[Difference]) -> None:
    """A state of another step that is loaded later in the program follows from what went wrong in
    an earlier step; so does the rest of a step after calls that were made otherwise."""
    failed = [row for row in rows if row.status.failed]
    if not failed:
        return
    culprit = min(failed, key=lambda row: row.step or 0)
    first = culprit.step or 0
    called = any(row.op == "mode" and (row.step or 0) == first for row in failed)
    other_mode = called and "training mode" in str(culprit.reason)  # results come after the call

    def late(row: Difference) -> bool:
        loaded = row.op == LOADED
        if not loaded and not (called and row.stage == rest_stage.STAGE):
            return False
        return (row.step or 0) >= first + (loaded or not other_mode)

    found.follow(culprit, late)


def under_setting(setting: Difference, found: Findings) -> None:
    """What an optimiser is told is a fact: gradients and state that differ follow from it, and what
    a program chooses by its models, or computes its data from, in later steps."""
    follows = ("gradients", "state", "optimiser", "schedule")

    def later(row: Difference) -> bool:
        return row.phase in ("input", "output") or row.op == "given"

    def after(row: Difference) -> bool:
        told = row.phase in follows or row.op == "accumulated" or later(row)
        at = (setting.step or 0) + later(row)
        return row.stage == rest_stage.STAGE and told and (row.step or 0) >= at

    found.follow(setting, after)


def changed_before_call(weight: Difference, formula: Difference) -> bool:
    """Whether weights that differ at a model's first call are what the program made of them in a
    step by a formula that differs itself: a slow copy that is moved before it is asked."""
    names = [row.module.partition(".")[0] for row in (weight, formula)]
    whole = str(weight.op).startswith(("parameter ", "buffer "))
    return whole and formula.phase in ("state", "optimiser") and names[0] == names[1]


def chosen_after(row: Difference, wrong: Difference, chooses: bool) -> bool:
    """Whether a value belongs to a step in which a model computed something wrong, or a later one,
    of a program that `chooses` by what models return; another shape shows such a choice."""
    later = (row.step or 0) >= (wrong.step or 0) and row.phase in ("input", "output")
    return later and (chooses or str(row.reason).startswith("shape "))
