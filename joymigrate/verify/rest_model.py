"""What a comparison of a run's free steps knows so far, and what it left out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from joymigrate.verify.growth import Growth
from joymigrate.verify.model import Difference

STAGE = "S4R"
UNREPEATED = "repeats.json"  # what another run of the baseline saw differ (`again.py`)
NOT_REPEATED = "the baseline does not repeat it: its second run made another one"


AT_A_PLATEAU = (
    "the rate follows a measured result that rounding has moved over the scheduler's threshold; "
    "given the baseline's results, the scheduler does as the baseline's"
)


@dataclass(slots=True)
class Rest:
    """What was judged of the rest, and what was not."""

    rows: list[Difference] = field(default_factory=list)
    compared: dict[str, int] = field(default_factory=dict)  # kind → events
    recorded: dict[str, int] = field(default_factory=dict)
    uncovered: list[dict[str, Any]] = field(default_factory=list)
    broken: str | None = None  # the target's own calls could not be run again
    made: Growth = field(default_factory=Growth)  # of what is made of numbers from outside
    short: Any = None  # words for a target that did less than the baseline
    parted: float = math.inf  # step from which a rate differs because a measured result does

    def leave_out(self, what: str, count: int, reason: Any) -> None:
        """Something that was not looked at."""
        for known in self.uncovered:
            if known["what"] == what and known["reason"] == reason:
                known["count"] += count
                return
        self.uncovered.append({"what": what, "count": count, "reason": reason})
