"""The cards that are stood in for: how many, which is current, and what a device argument names."""

from __future__ import annotations

import os
from typing import Any

import torch

from joymigrate.run.door import refusals
from joymigrate.run.door.marks import HOST
from joymigrate.run.door.settings import VISIBLE, DoorSettings

LOCAL = "LOCAL_WORLD_SIZE"  # torchrun's: a machine has a card for each of its processes


class DoorCards:
    """The origin's cards in this process."""

    def __init__(self) -> None:
        self.word = "cuda"
        self.settings = DoorSettings()
        self.current = 0
        self.default: int | None = None  # of torch.set_default_device and set_default_tensor_type
        self.seeded = False  # the program has seeded torch itself

    def count(self) -> int:
        """How many the program can use."""
        visible = os.environ.get(VISIBLE)
        if visible is not None:
            listed = [one.strip() for one in visible.split(",") if one.strip()]
            return listed.index("-1") if "-1" in listed else len(listed)
        local = os.environ.get(LOCAL, "")
        return max(self.settings.cards, int(local) if local.isdigit() else 0)

    def read(self, value: Any) -> int | None:
        """The card that a device argument names, HOST, or None for another kind of device."""
        if isinstance(value, torch.device):
            if value.type == self.word:
                return self.checked(self.current if value.index is None else value.index)
            if value.type == "cpu":  # what torch's own lines were told of a card: cpu:1 is card 0
                return (value.index or 0) - 1
            return None
        if isinstance(value, str):
            if value == self.word:
                return self.checked(self.current)
            if value.startswith(self.word + ":") and value[len(self.word) + 1 :].isdigit():
                return self.checked(int(value[len(self.word) + 1 :]))
            return HOST if value in ("cpu", "cpu:0") else None
        if isinstance(value, int) and not isinstance(value, bool):
            return self.checked(value)
        return None

    def checked(self, card: int) -> int:
        """A card that is there; torch's own words otherwise."""
        count = self.count()
        if card >= count:
            refusals.refuse_card(card, count)
        return card

    def named(self, value: Any) -> int:
        """The card that a call of torch.cuda means: None is the current one."""
        if value is None:
            return self.current
        found = self.read(value)
        return self.current if found is None or found == HOST else found

    def shown(self, card: int) -> torch.device:
        """A card as the program sees it."""
        return torch.device(self.word, card)

    def inner(self, card: int) -> torch.device:
        """A card as torch's own lines see it: the CPU, numbered, so that it can be told again."""
        return torch.device("cpu", card + 1)


cards = DoorCards()
