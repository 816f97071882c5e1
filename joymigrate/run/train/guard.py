"""Watches the loss: not a number, or far above the recent ones for good.

A pure state machine without clock or file: `on(step, loss, norm)` says what to do.

    guard = SpikeGuard()
    if guard.on(step, loss) is Action.ROLL_BACK: ...   # load the last good checkpoint
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from statistics import median


class GuardAction(str, Enum):
    """What a loop should do with a step."""

    GO_ON = "go on"
    WARN = "warn"
    ROLL_BACK = "roll back"
    FAIL = "fail"


@dataclass
class RecentValues:
    """The last `window` values of one figure.

    Deviation is 1.4826 times the median absolute deviation, which for normal values is their
    standard deviation, and at least `least` times the median, so that a figure that hardly moves
    does not make every ripple a spike.
    """

    window: int
    least: float = 0.02
    warm: int = 10  # values to have seen before one can be far off
    seen: deque[float] = field(default_factory=deque)

    def add(self, value: float) -> None:
        """Take one more."""
        self.seen.append(value)
        while len(self.seen) > self.window:
            self.seen.popleft()

    def limit(self, deviations: float) -> float:
        """The value so many deviations above the median; infinite while too few are known."""
        if deviations <= 0 or len(self.seen) < self.warm:
            return math.inf
        middle = median(self.seen)
        spread = 1.4826 * median(abs(value - middle) for value in self.seen)
        return middle + deviations * max(spread, self.least * abs(middle))


@dataclass
class SpikeGuard:
    """Loss and gradient norm `spike` deviations above the recent ones for `patience` looks in a row
    are a spike; 0 switches that off. Rare rows and heavy tails lift a single look, a run that
    diverges stays up. A spike warns, or rolls back where `on_spike` says so. A value that is not
    finite always rolls back. After `rollbacks` it gives up.
    """

    spike: float = 8.0
    window: int = 50
    rollbacks: int = 2
    on_spike: str = "warn"
    patience: int = 5
    used: int = 0
    above: int = 0  # looks in a row that were far above the recent ones
    reason: str = ""

    def __post_init__(self) -> None:
        self.losses, self.norms = RecentValues(self.window), RecentValues(self.window)

    def on(self, step: int, loss: float, norm: float | None = None) -> GuardAction:
        """Judge one look; `reason` says why it is not to go on. Without a norm the loss decides."""
        for name, value in (("loss", loss), ("gradient norm", norm)):
            if value is not None and not math.isfinite(value):
                self.reason = f"the {name} of step {step} is {value}"
                return self.give_back()
        limit = self.losses.limit(self.spike)
        if loss <= limit or (norm is not None and norm <= self.norms.limit(self.spike)):
            self.above = 0
            self.losses.add(loss)
            if norm is not None:
                self.norms.add(norm)
            return GuardAction.GO_ON
        self.above += 1
        if self.above < self.patience:
            return GuardAction.GO_ON
        self.reason = f"the loss of step {step} is {loss:.4g}, the limit {limit:.4g}"
        if self.patience > 1:
            self.reason += f", for {self.above} looks in a row"
        if self.on_spike == "roll_back":
            return self.give_back()
        self.forget()
        return GuardAction.WARN

    def give_back(self) -> GuardAction:
        """Roll back, as long as that may be done."""
        if self.used >= self.rollbacks:
            return GuardAction.FAIL
        self.used += 1
        return GuardAction.ROLL_BACK

    def forget(self) -> None:
        """Learn anew what is usual: after a checkpoint was loaded, or a warning was given."""
        self.above = 0
        self.losses.seen.clear()
        self.norms.seen.clear()
