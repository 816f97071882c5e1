"""Loss scaling for float16: a pure state machine. Its range is too small for raw gradients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LossScale:
    """Halves when a gradient overflows (that step is left out); `patience` good steps double it.

    Other types need none: `on` stays False and the scale 1.
    """

    on: bool = False
    value: float = 65536.0
    patience: int = 200
    good: int = 0

    @property
    def factor(self) -> float:
        """What the loss is multiplied by."""
        return self.value if self.on else 1.0

    def accept(self, finite: bool) -> bool:
        """Whether the step counts, given whether its gradients' norm is finite."""
        if not self.on:
            return True
        if not finite:
            self.value, self.good = max(1.0, self.value / 2), 0
            return False
        self.good += 1
        if self.good >= self.patience:
            self.value, self.good = min(self.value * 2, 2.0**24), 0
        return True
