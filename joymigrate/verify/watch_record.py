"""What judging a watched run leaves out, and its rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from joymigrate.verify.model import Difference


@dataclass(slots=True)
class Watched:
    """What was judged of the whole run, and what was not."""

    rows: list[Difference] = field(default_factory=list)
    uncovered: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0  # judged
    of: int = 0
    printed: tuple[int, int] = (0, 0)  # numbers that were compared, and printed
    files: tuple[int, int] = (0, 0)  # that were compared, and written
    chooses: bool = False  # a program reads whole numbers of its models
    same_choices: bool = False  # all of these were seen, and are the baseline's
    takes: bool = False  # it takes tensors of its models out of torch
    short: bool = False  # anything computes in 16 bits or fewer
    fed_back: bool = False  # its own results come back as data, which rounding has moved apart
    parted: float = math.inf  # step from which the sides train at other rates
    alike: bool = (
        False  # results of all calls without gradients agree, and no choice fell otherwise
    )

    def leave_out(self, what: str, count: int, reason: Any) -> None:
        """Something that changes and was not compared."""
        self.uncovered.append({"what": what, "count": count, "reason": reason})
