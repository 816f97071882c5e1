"""Which card a tensor's memory pretends to be on, and how much memory each card holds.

The mark lies on the storage: views share it, and it lives as long as the memory does. Tensors
without a storage (sparse ones) carry it themselves. Memory that no call of torch's was seen to make
is unmarked: inside a backward pass it counts as a card's, elsewhere as the host's.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

HOST = -1
MARK = "_joymigrate_card"
NESTED = (list, tuple, dict)
MOST_NESTED = 3
storage_of = torch.Tensor.untyped_storage


class CardMemory:
    """Bytes by card: held now, and at most since the last reset."""

    def __init__(self) -> None:
        self.now: Counter[int] = Counter()
        self.peak: Counter[int] = Counter()

    def take(self, card: int, size: int) -> None:
        """A storage was made."""
        self.now[card] += size
        self.peak[card] = max(self.peak[card], self.now[card])

    def reset_peak(self, card: int) -> None:
        """Count the peak anew."""
        self.peak[card] = self.now[card]


memory = CardMemory()


class CardMark:
    """The card of one storage; gone with it."""

    __slots__ = ("card", "size")

    def __init__(self, card: int, size: int) -> None:
        self.card, self.size = card, size
        if card != HOST:
            memory.take(card, size)

    def __del__(self, held: Counter[int] = memory.now) -> None:
        if self.card != HOST:  # also as Python ends, when the names of this file are gone
            held[self.card] -= self.size


ON_HOST = CardMark(HOST, 0)


def holder(tensor: torch.Tensor) -> Any:
    """What carries a tensor's mark. A recorder's mode, which lies below, is not asked: each call
    of the program comes here several times."""
    try:
        with torch._C.DisableTorchFunction():
            return storage_of(tensor)
    except (NotImplementedError, RuntimeError):
        return tensor


def find_card(tensor: torch.Tensor) -> int | None:
    """The card of a tensor, HOST, or None where nobody saw it made."""
    mark = getattr(holder(tensor), MARK, None)
    return None if mark is None else mark.card


def card_of(tensor: torch.Tensor) -> int:
    """The card that a tensor counts as being on, or HOST."""
    card = find_card(tensor)
    if card is None:
        return 0 if memory.peak and torch._C._current_graph_task_id() != -1 else HOST
    return card


def mark(tensor: torch.Tensor, card: int) -> torch.Tensor:
    """Put a tensor's memory on a card, unless it lies on one already."""
    on = holder(tensor)
    if getattr(on, MARK, None) is None:
        put(on, card)
    return tensor


def put(on: Any, card: int) -> None:
    """Mark a storage, or a tensor without one, anew."""
    if card == HOST:
        setattr(on, MARK, ON_HOST)
        return
    size = on.nbytes() if isinstance(on, torch.UntypedStorage) else 0
    setattr(on, MARK, CardMark(card, size))


def tensors_in(value: Any, depth: int = 0) -> list[torch.Tensor]:
    """The tensors of nested lists, tuples and dictionaries. Every call of torch's asks for them."""
    if isinstance(value, torch.Tensor):
        return [value]
    found: list[torch.Tensor] = []
    if not isinstance(value, NESTED):
        return found
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, torch.Tensor):
            found.append(one)
        elif depth < MOST_NESTED:
            found += tensors_in(one, depth + 1)
    return found
