"""What a watched run says of itself: how it computes, chooses and draws."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from joymigrate.verify.bundle import Rank

SUDDEN_GROWTH = 10.0  # it can't be above 2; 204 series of clean runs stay below 5 times


NOISE = 0.3  # relative error of a gradient in a recorded step that is nothing but rounding


def computes_short(rank: Rank) -> bool:
    """Whether any module's output or parameter was in 16 bits or fewer in a recorded step."""
    for step in rank.steps:
        table = rank.table(step)
        if any(t.startswith(("bfloat", "float16", "float8")) for t in table.dtype):
            return True
    return False


def choosing(rank: Rank) -> set[str]:
    """Models with a module whose code chooses by values, where rounding can grow at once."""
    return {
        root
        for root, modules in rank.program.get("modules", {}).items()
        if any(module.get("chooses", True) for module in modules)
    }


def weights_of_noise(ours: Rank, theirs: Rank, roots: Mapping[str, str]) -> set[str]:
    """Weights whose gradients differ by their own size in a recorded step: what is left of terms
    that cancel (a bias before a norm), which moves them in any direction."""
    found = set()
    back = {mine: other for other, mine in roots.items()}
    for step in set(ours.steps) & set(theirs.steps):
        table, other = ours.table(step), theirs.table(step)
        sizes = table.sizes()
        gaps: dict[str, dict[str, float]] = {}  # root → name → relative error of the gradient
        for row, (module, call, kind, leaf) in enumerate(table.keys()):
            root, _, path = module.partition(":")
            if kind != "grad":
                continue
            there = other.place((f"{back.get(root, root)}:{path}", call, kind, leaf))
            if there is None:
                continue
            gap = float(np.linalg.norm(table.sketch[row] - other.sketch[there]) / sizes[row])
            name = f"{module}{leaf}" if not path else f"{module}.{leaf}"
            gaps.setdefault(root, {})[name] = gap if math.isfinite(gap) else math.inf
        for errors in gaps.values():
            # Where most gradients are apart the runs have drifted, which tells nothing of one.
            if statistics.median(errors.values()) <= NOISE / SUDDEN_GROWTH:
                found |= {name for name, gap in errors.items() if gap > NOISE}
    return found


def drawing(rank: Rank) -> set[str]:
    """Models that draw random numbers, as a replay found."""
    calls = rank.json("replay.json").get("lessons", [])
    return {call["root"] for call in calls if any(call["draws"].values())}


def whole_steps(watch: Mapping[str, Any], before: int) -> dict[str, Any]:
    """The series without the step that broke off, and what came after it."""
    series = {
        name: items if name.startswith("batch ") else [one for one in items if one[0] < before]
        for name, items in watch["series"].items()
    }
    return {**watch, "series": {name: items for name, items in series.items() if items}}
