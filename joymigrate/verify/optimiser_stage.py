"""S5, optimisers: settings, and what their code did to known tensors, free of the run's noise."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from joymigrate.language import Text
from joymigrate.verify import crash
from joymigrate.verify.bundle import Rank
from joymigrate.verify.calls import same_value
from joymigrate.verify.display import Display
from joymigrate.verify.identity import FLAT_TENSOR, owner_of
from joymigrate.verify.model import Difference, Phase, RecordStatus

OWN_UPDATE = "own update"  # a metric
OFF = 10.0  # times what the CPU's arithmetic in the same type is off by
CLOSE = 1e-6  # relative: settings that were computed, and float64 arithmetic in another order


def optimisers(baseline: Rank, target: Rank, names: Mapping[str, str]) -> Iterator[Difference]:
    """Every optimiser step that both sides recorded. `names`: target's place by baseline's."""
    view = Display(baseline.program)
    unfinished = (crash.of([target]) or {}).get("step")  # it broke off before its optimiser's turn
    gone = absent(baseline.program, target.program, names)
    for step in baseline.steps:
        if step not in target.steps:
            continue
        ours = baseline.facts(step).get("optimisers", [])
        theirs = target.facts(step).get("optimisers", [])
        for mine, other in zip(ours, theirs, strict=False):
            yield from groups(mine, other, step, view, names, gone)
            yield from results(mine, other, step, view)
            yield from own_updates(mine, other, step, view, names)
        if len(ours) != len(theirs) and step != unfinished:
            reason = Text(
                "{ours} optimiser steps became {theirs}", ours=len(ours), theirs=len(theirs)
            )
            first = first_parameter((ours or theirs)[0]["groups"], view)
            yield entry(first, "optimiser steps", RecordStatus.FAIL, step, reason=reason)


def absent(
    baseline: Mapping[str, Any], target: Mapping[str, Any], names: Mapping[str, str]
) -> set[tuple[str, str]]:
    """Parameters (place, leaf) of the baseline whose modules the target has without them."""
    theirs, ours = declare_parameters(target), declare_parameters(baseline)
    return {
        (place, leaf)
        for place, leaves in ours.items()
        for leaf in leaves
        if leaf not in theirs.get(names.get(place, ""), leaves)
    }


def declare_parameters(program: Mapping[str, Any]) -> dict[str, list[str]]:
    """Names of each module's own parameters."""
    return {
        f"{root}:{module['path']}": list(module["params"])
        for root, modules in program.get("modules", {}).items()
        for module in modules
    }


def entry(
    module: str,
    op: str,
    status: RecordStatus,
    step: int,
    *,
    value: float | None = None,
    metric: str = "setting",
    reason: str | None = None,
) -> Difference:
    """One difference of an optimiser."""
    return Difference(
        module=module,
        phase=Phase.OPTIMISER.value,
        op=op,
        metric=metric,
        value=value,
        limit=CLOSE,
        status=status,
        stage="S5",
        step=step,
        reason=reason,
        order=1 << 30,
    )


def first_parameter(found: Sequence[Mapping[str, Any]], view: Display) -> str:
    """The module of the first parameter that an optimiser updates."""
    for group in found:
        for name in group["params"]:
            return view(owner_of(name)[0])
    return ""


def count_unnamed(side: Mapping[str, Any]) -> int:
    """How many tensors an optimiser updates that are in no model."""
    return sum(name.startswith("?") for group in side["groups"] for name in group["params"])


def groups(
    mine: Mapping[str, Any],
    other: Mapping[str, Any],
    step: int,
    view: Display,
    names: Mapping[str, str],
    gone: Collection[tuple[str, str]],
) -> Iterator[Difference]:
    """Settings of each parameter, whichever group it is in. `gone`: that the target has not."""
    ours, theirs = by_parameter(mine), by_parameter(other)
    told: set[str] = set()
    flat = [any(leaf.endswith(FLAT_TENSOR) for _, leaf in side) for side in (ours, theirs)]
    if flat[0] != flat[1]:  # FSDP1 hands its optimiser one tensor for many: by the groups' order
        ours, theirs = by_group(mine), by_group(other)
        yield from other_groups(mine, other, step, view)
    for (place, leaf), settings in ours.items():
        twin = theirs.get((names.get(place, place), leaf))
        module = view(place)
        if twin is None:
            held = theirs and not place.startswith("?") and (place, leaf) not in gone
            if held and "held" not in told:
                told.add("held")
                reason = "the target's optimiser does not update this parameter"
                op = f"{mine['class']} {leaf}"
                yield entry(module, op, RecordStatus.FAIL, step, reason=reason)
            continue
        for key in sorted(settings.keys() & twin.keys()):
            a, b = settings[key], twin[key]
            label = f"{key}{a}{b}"
            if not unequal(a, b) or label in told:
                continue
            told.add(label)
            reason = f"{key}: {a} → {b}"
            yield entry(module, f"{mine['class']}.{key}", RecordStatus.FAIL, step, reason=reason)
    loose = [0, 0] if flat[0] != flat[1] else [count_unnamed(side) for side in (mine, other)]
    same = {(names.get(p, p), leaf) for p, leaf in ours if not p.startswith("?")}
    if not told and loose[0] != loose[1] and same == {k for k in theirs if k[0][:1] != "?"}:
        told.add("loose")
        words = "it updates {have} tensors that are in no model, {want} in the baseline"
        reason = Text(words, have=loose[1], want=loose[0])
        yield entry(str(mine["class"]), "tensors", RecordStatus.FAIL, step, reason=reason)
    if not told:
        first = first_parameter(mine["groups"], view)
        yield entry(first, f"{mine['class']} settings", RecordStatus.IDENTICAL, step, value=0.0)


def other_groups(
    mine: Mapping[str, Any], other: Mapping[str, Any], step: int, view: Display
) -> Iterator[Difference]:
    """Another number of groups, where their parameters can't be told one by one."""
    counts = len(mine["groups"]), len(other["groups"])
    if counts[0] != counts[1]:
        words = "{ours} groups of parameters became {theirs}"
        reason = Text(words, ours=counts[0], theirs=counts[1])
        first = first_parameter(mine["groups"], view)
        yield entry(first, "groups", RecordStatus.FAIL, step, reason=reason)


def by_parameter(found: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Settings by (place, leaf)."""
    return {
        owner_of(name): group["settings"] for group in found["groups"] for name in group["params"]
    }


def by_group(found: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Settings by the number of their group, in the place of a parameter of no model."""
    return {("?", str(n)): group["settings"] for n, group in enumerate(found["groups"])}


def unequal(a: Any, b: Any) -> bool:
    """Whether two settings differ by more than the last digits; None is as False."""
    if isinstance(a, bool) or isinstance(b, bool):
        return bool(a) != bool(b)
    return not same_value(a, b, CLOSE)


def results(
    mine: Mapping[str, Any], other: Mapping[str, Any], step: int, view: Display
) -> Iterator[Difference]:
    """What the optimisers' code does, for groups of equal settings or in their order."""
    module = first_parameter(mine["groups"], view)
    pairs = zip(mine["probe"], other["probe"], strict=False)
    for ours, theirs in pairs:
        if any(
            unequal(ours["settings"].get(key), theirs["settings"].get(key))
            for key in ours["settings"].keys() & theirs["settings"].keys()
        ):
            continue  # the setting is the difference
        cases = list(zip(ours["results"], theirs["results"], strict=False))
        if "together" in ours and "together" in theirs:  # not in older baselines
            cases.append((ours["together"], theirs["together"]))
        for a, b in cases:
            shapes = a["shape"] if isinstance(a["shape"][0], list) else [a["shape"]]
            op = Text(
                "{optimiser} update of {shape}",
                optimiser=mine["class"],
                shape=", ".join("×".join(map(str, shape)) for shape in shapes),
            )
            if "updates" not in a or "updates" not in b:
                reason = a.get("reason") or b.get("reason")
                yield entry(
                    module, op, RecordStatus.UNCOMPARED, step, metric="update", reason=reason
                )
                continue
            error = apart(a["updates"], b["updates"])
            status = RecordStatus.FAIL if error > CLOSE else RecordStatus.PASS
            yield entry(module, op, status, step, value=error, metric="update")
            if status is RecordStatus.FAIL:
                return


def own_updates(
    mine: Mapping[str, Any],
    other: Mapping[str, Any],
    step: int,
    view: Display,
    names: Mapping[str, str],
) -> Iterator[Difference]:
    """Every weight's update by float64 arithmetic of the target's own weight, gradient and state;
    the first that is not it, where the baseline's own are."""
    base, found = mine.get("own") or {"rows": []}, other.get("own")
    if not found:
        return  # an older joymigrate
    back = {there: here for here, there in names.items()}

    def shown(name: str) -> tuple[str, str]:
        place, leaf = owner_of(name)
        return view(back.get(place, place)), leaf

    first = first_parameter(mine["groups"], view)
    if found["reason"] is not None:
        op = f"{other['class']} update"
        reason = Text("not made again in float64: {why}", why=found["reason"])
        yield entry(first, op, RecordStatus.UNCOMPARED, step, metric=OWN_UPDATE, reason=reason)
        return
    wrong_there = any(error > OFF * usual for _, _, error, usual, _ in base["rows"])
    for name, what, error, usual, _ in found["rows"]:
        module, leaf = shown(name)
        op = Text("update of {leaf}", leaf=leaf if what == "weight" else f"{leaf}.{what}")
        status = RecordStatus.PASS if error <= OFF * usual else RecordStatus.FAIL
        said = None
        if status is RecordStatus.FAIL:
            text = "not what {optimiser} makes of the device's own weight, gradient and state"
            said = Text(text, optimiser=other["class"])
            status = RecordStatus.WARN if wrong_there else status
        made = entry(module, op, status, step, value=error, metric=OWN_UPDATE, reason=said)
        yield replace(made, limit=OFF * usual, baseline_error=usual)
        if status is RecordStatus.FAIL:
            return


def apart(a: Any, b: Any) -> float:
    """Largest relative difference over the steps."""
    worst = 0.0
    for ours, theirs in zip(a, b, strict=True):
        x, y = np.asarray(ours, float), np.asarray(theirs, float)
        norm = float(np.linalg.norm(x)) or 1e-300
        worst = max(worst, float(np.linalg.norm(x - y)) / norm)
    return worst
