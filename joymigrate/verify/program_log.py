"""What a program does from its first step to its last, in a few bytes per step: which models it
calls in which mode, and the settings that its optimisers step with."""

from __future__ import annotations

from typing import Any

from joymigrate.verify.identity_map import IdentityMap
from joymigrate.verify.optimisers import settings_of

MOST = 20_000  # entries of one list; runs of equal entries count once


class ProgramLog:
    """Runs of equal model calls, and optimiser settings where they change."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []  # [root, training, gradients, times, first step]
        self.updates: dict[str, int] = {}  # optimiser → updates
        self.settings: list[list[Any]] = []  # [optimiser, update, settings of its groups]
        self.last: dict[str, Any] = {}
        self.order: IdentityMap[str] = IdentityMap()
        self.count = 0
        self.backward = 0

    def call(self, root: str, training: bool, gradients: bool, step: int) -> None:
        """A model is called from outside of any model."""
        last = self.calls[-1] if self.calls else None
        if last is not None and last[:3] == [root, training, gradients]:
            last[3] += 1
        elif len(self.calls) < MOST:
            self.calls.append([root, training, gradients, 1, step])

    def update(self, optimiser: Any) -> None:
        """An optimiser steps."""
        key = self.order.get(optimiser)
        if key is None:
            key = self.order.setdefault(optimiser, f"{type(optimiser).__name__} {self.count}")
            self.count += 1
        number = self.updates[key] = self.updates.get(key, -1) + 1
        numbers = tuple(
            v for g in optimiser.param_groups for k, v in g.items() if isinstance(v, int | float)
        )
        if self.last.get(key) == numbers:
            return
        self.last[key] = numbers
        if len(self.settings) < MOST:
            held = [settings_of(group) for group in optimiser.param_groups]
            self.settings.append([key, number, held])

    def to_json(self) -> dict[str, Any]:
        """For `log.json`."""
        return {
            "calls": self.calls,
            "updates": self.updates,
            "settings": self.settings,
            "backward": self.backward,
        }
