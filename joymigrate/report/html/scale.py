"""A range of values on a range of pixels, with round numbers as labels."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from joymigrate.report.html.page import translate


@dataclass(frozen=True, slots=True)
class Scale:
    """A range of values on a range of pixels; `ends` are labels in place of numbers."""

    low: float
    high: float
    first: float
    last: float
    log: bool = False
    whole: bool = False
    ends: dict[float, str] = field(default_factory=dict)

    def at(self, value: float) -> float:
        """The pixel of a value; what lies outside is drawn at the edge."""
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log10(max(value, low)), math.log10(low), math.log10(high)
        share = min(max((value - low) / (high - low), 0.0), 1.0)
        return self.first + (self.last - self.first) * share

    def ticks(self) -> list[tuple[float, str]]:
        """Round values with their labels: decades where logarithmic."""
        if not self.log:
            most = 6 if self.last > self.first else 5
            found = ticks(self.low, self.high, most, self.whole)
            return [(value, number(value)) for value in found]
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        stride = max(1, math.ceil((last - first) / 5))
        powers = [10.0**power for power in range(last, first - 1, -stride)]
        kept = [(power, decade(power)) for power in powers if power not in self.ends]
        return kept + [(value, translate(label)) for value, label in self.ends.items()]


def ticks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """Round numbers between two ends."""
    raw = (high - low) / most
    power = 10 ** math.floor(math.log10(raw)) if raw > 0 else 1
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [step * n for n in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A value of an axis, short."""
    if 1e4 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    return f"{value:.4g}" if value else "0"


def decade(value: float) -> str:
    """A power of ten: plainly where it is short."""
    return f"{value:g}" if 1e-3 <= value <= 1e4 else f"1e{round(math.log10(value))}"
