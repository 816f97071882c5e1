"""Generators of random numbers: one draws for the host and for the cards."""

from __future__ import annotations

import functools
from typing import Any

import torch

from joymigrate.run.door.cards import cards
from joymigrate.run.door.frames import DoorFrameOwner, asker


def install() -> None:
    """Let generators of a card draw on the CPU, and know whether the program seeds torch."""
    plain: Any = torch.Generator

    class Generator(plain):  # type: ignore[misc]
        """A generator that says which device it was asked for."""

        def __new__(cls, device: Any = "cpu") -> Any:
            card = cards.read(device)
            made = super().__new__(cls, plain().device if card is not None else device)
            made.card = card
            return made

        @property
        def device(self) -> torch.device:
            card = getattr(self, "card", None)
            if card is None or card < 0 or asker() is not DoorFrameOwner.PROGRAM:
                return torch.device("cpu")
            return cards.shown(card)

    Generator.__name__ = Generator.__qualname__ = "Generator"
    torch.Generator = Generator  # type: ignore[misc]
    seed = torch.manual_seed

    @functools.wraps(seed)
    def manual_seed(number: Any) -> Any:
        cards.seeded |= asker() is not DoorFrameOwner.OURS
        return seed(number)

    owner: Any
    for owner in (torch, torch.random):
        owner.manual_seed = manual_seed
