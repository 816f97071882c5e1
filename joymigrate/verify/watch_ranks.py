"""What a watched run says of itself: what it draws, and where it broke off."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from joymigrate.verify.bundle import Rank
from joymigrate.verify.environment import DRAWN
from joymigrate.verify.rest_stage import draws_otherwise


def drawing(rank: Rank) -> set[str]:
    """Models that draw random numbers, as a replay found."""
    calls = rank.json("replay.json").get("lessons", [])
    return {call["root"] for call in calls if any(call["draws"].values())}


def draws_alike(ours: Rank, theirs: Rank) -> bool:
    """Whether both sides draw the same random numbers from the same state: nothing that the target
    drew from one shows otherwise, and its devices are the baseline's or numbers are shared."""
    facts = [rank.program.get("environment", {}) for rank in (ours, theirs)]
    shared = all(one.get("variables", {}).get(DRAWN[1]) == "1" for one in facts)
    events = theirs.json("tape.json").get("events", ())
    given = (fact for event in events for fact in event.get("given", ()))
    if any(map(draws_otherwise, given)):
        return False
    return shared or facts[0].get("devices") == facts[1].get("devices")


def whole_steps(watch: Mapping[str, Any], before: float) -> dict[str, Any]:
    """The series of the steps before one that broke off, or before which a run was ended."""
    if not watch or before == math.inf:
        return dict(watch)
    series = {
        name: items if name.startswith("batch ") else [one for one in items if one[0] < before]
        for name, items in watch["series"].items()
    }
    return {**watch, "series": {name: items for name, items in series.items() if items}}
