"""Pairs the places of two recordings: outermost modules first, then the modules below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from joymigrate.verify.align import Alignment, NameMap, align


@dataclass(slots=True)
class Pairing:
    """`names` is the target's place by the baseline's, where both have it."""

    roots: dict[str, str] = field(default_factory=dict)  # baseline → target
    names: dict[str, str] = field(default_factory=dict)
    how: dict[str, str] = field(default_factory=dict)
    only_baseline: list[str] = field(default_factory=list)
    only_target: list[str] = field(default_factory=list)
    ignored: tuple[str, ...] = ()


def pair(
    baseline: Mapping[str, Any],
    target: Mapping[str, Any],
    names: NameMap | None = None,
    known: Mapping[str, str] | None = None,
) -> Pairing:
    """Pair two programs; `known` are roots (target → baseline) that a replay paired already."""
    made = Pairing(ignored=names.ignore if names else ())
    made.roots = pair_roots(baseline, target, {b: t for t, b in (known or {}).items()})
    for ours, theirs in made.roots.items():
        found: Alignment = align(
            baseline.get("modules", {}).get(ours, []),
            target.get("modules", {}).get(theirs, []),
            names,
        )
        for a, b in found.target_names.items():
            made.names[f"{ours}:{a}"] = f"{theirs}:{b}"
            made.how[f"{ours}:{a}"] = found.how[a]
        made.only_baseline += [f"{ours}:{p}" for p in found.only_baseline]
        made.only_target += [f"{theirs}:{p}" for p in found.only_target]
    for root, modules in baseline.get("modules", {}).items():
        if root not in made.roots:
            made.only_baseline += [f"{root}:{m['path']}" for m in modules]
    return made


def pair_roots(
    baseline: Mapping[str, Any], target: Mapping[str, Any], known: Mapping[str, str]
) -> dict[str, str]:
    """By name, then by class, then by being the only one that holds weights."""
    made = dict(known)
    for root in baseline.get("roots", []):
        free = [r for r in target.get("roots", []) if r["name"] not in made.values()]
        found = None if root["name"] in made else find_root(root, free)
        if found is not None:
            made[root["name"]] = found
    return made


def find_root(root: Mapping[str, Any], free: Sequence[Mapping[str, Any]]) -> str | None:
    """The root among `free` that is another side's: by name, then by class, then by being the only
    one that holds weights, or none."""
    alike = [r for r in free if bool(r["parameters"]) == bool(root["parameters"])]
    same = [r for r in alike if r["class"] == root["class"]]
    exact = [r for r in free if r["name"] == root["name"]]
    found = next(iter([*exact, *same]), None) or (alike[0] if len(alike) == 1 else None)
    return None if found is None else str(found["name"])
