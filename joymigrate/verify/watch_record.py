"""What was judged of a watched run, and what was not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from joymigrate.verify.model import Difference


@dataclass(slots=True)
class RunRows:
    """The rows of a run; `doubts` are rows that depart where a choice by rounding may be why."""

    rows: list[Difference] = field(default_factory=list)
    doubts: list[Difference] = field(default_factory=list)
    uncovered: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0  # judged
    of: int = 0
    printed: tuple[int, int] = (0, 0)  # numbers that were compared, and printed
    files: tuple[int, int] = (0, 0)  # that were compared, and written
    chosen: float = math.inf  # step from which the program may have chosen otherwise by rounding
    end: float = math.inf  # step from which the sides do not compute the same thing any more

    def leave_out(self, what: Any, count: int, reason: Any) -> None:
        """Something that changes and was not compared."""
        for known in self.uncovered:
            if known["what"] == what and known["reason"] == reason:
                known["count"] += count
                return
        self.uncovered.append({"what": what, "count": count, "reason": reason})
