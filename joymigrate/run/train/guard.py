"""Watches the loss: not a number, or far above the recent ones, asks for a rollback.

A pure state machine without clock or file: `on(step, loss)` says what to do.

    guard = SpikeGuard()
    if guard.on(step, loss) is not Action.GO_ON: ...   # load the last good checkpoint
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from statistics import median


class Action(str, Enum):
    """What a loop should do with a step."""

    GO_ON = "go on"
    ROLL_BACK = "roll back"
    FAIL = "fail"


@dataclass
class SpikeGuard:
    """`spike` deviations above the median of the last `window` losses is a spike; 0 switches that
    off (a loss that is not finite is always one). Deviation is 1.4826 times the median absolute
    deviation, which for normal losses is their standard deviation, and at least `least` times the
    median, so that a loss that hardly moves does not make every ripple a spike. After `rollbacks`
    it gives up.
    """

    spike: float = 8.0
    window: int = 50
    rollbacks: int = 2
    least: float = 0.02
    warm: int = 10  # losses to have seen before a spike can be told
    seen: deque[float] = field(default_factory=deque)
    used: int = 0
    reason: str = ""

    def on(self, step: int, loss: float) -> Action:
        """Judge one step's loss; `reason` says why it is not to go on."""
        limit = self.limit()
        if not math.isfinite(loss):
            self.reason = f"the loss of step {step} is {loss}"
        elif limit is not None and loss > limit:
            self.reason = f"the loss of step {step} is {loss:.4g}, the limit {limit:.4g}"
        else:
            self.seen.append(loss)
            while len(self.seen) > self.window:
                self.seen.popleft()
            return Action.GO_ON
        if self.used >= self.rollbacks:
            return Action.FAIL
        self.used += 1
        return Action.ROLL_BACK

    def limit(self) -> float | None:
        """The loss above which a step is a spike; None while too few are known."""
        if self.spike <= 0 or len(self.seen) < self.warm:
            return None
        middle = median(self.seen)
        spread = 1.4826 * median(abs(loss - middle) for loss in self.seen)
        return middle + self.spike * max(spread, self.least * abs(middle))

    def rolled_back(self) -> None:
        """Forget the losses after the checkpoint that was loaded."""
        self.seen.clear()
