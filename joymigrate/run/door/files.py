"""Checkpoints that say a card: saved with its name, and read back onto it."""

from __future__ import annotations

from typing import Any

import torch

from joymigrate.run.door.cards import cards
from joymigrate.run.door.marks import HOST, MARK, put

FIRST = 1  # before torch's own CPU (10), which would take every storage


def install() -> None:
    """Tell torch.save and torch.load of the cards."""
    torch.serialization.register_package(FIRST, tag, restore)


def tag(storage: Any) -> str | None:
    """The card of a storage that is saved; None leaves it to torch."""
    held = getattr(storage, "_untyped_storage", storage)
    mark = getattr(held, MARK, None)
    return None if mark is None or mark.card == HOST else f"{cards.word}:{mark.card}"


def restore(storage: Any, location: str) -> Any:
    """A storage that was saved on a card; None for another place."""
    if not location.startswith(cards.word):
        return None
    card = cards.read(location)
    if card is not None and card != HOST:
        put(getattr(storage, "_untyped_storage", storage), card)
    return storage
