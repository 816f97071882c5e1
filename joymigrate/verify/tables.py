"""Tables: tensors that a program makes of constants alone, outside of its models.

A schedule of noise, positions, weights of classes: what is made before the first call of a model,
or later from nothing that a model returned, carries no rounding of a run. Wherever it is used it
must be the baseline's to the last digits of its type, however far the runs have drifted.
"""

from __future__ import annotations

import gc
import weakref
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from joymigrate.verify.isolated_pass import raw_bytes
from joymigrate.verify.tape_entries import storage, version

MOST = 1000  # tables that are known
READ = 1 << 16  # elements that are looked at, to see whether other code has changed one


class Tables:
    """Tensors known as tables, each as it was when it was noted."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[weakref.ref[torch.Tensor], tuple[int, int, int]]] = {}
        self.roundings: dict[int, float] = {}

    def note(self, tensors: Iterable[Any]) -> None:
        """From here on these are tables, while nobody changes them."""
        for tensor in tensors:
            if len(self.known) < MOST and is_plain(tensor):
                self.known[id(tensor)] = weakref.ref(tensor), state_of(tensor)
                self.roundings.pop(id(tensor), None)

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether this is a table, with the values that it was noted with."""
        held = self.known.get(id(tensor))
        return held is not None and held[0]() is tensor and held[1] == state_of(tensor)

    def forget(self, tensor: torch.Tensor) -> None:
        """No table: it is about to be written where no version counts it (`x.data`)."""
        self.known.pop(id(tensor), None)

    def rounding(self, tensor: torch.Tensor) -> float | None:
        """How far a table, as it was noted, is from the same calls in float64, relative; None where
        nobody knows."""
        held = self.known.get(id(tensor))
        known = held is not None and held[0]() is tensor
        return self.roundings.get(id(tensor)) if known else None


def made_before_models(drawn: Callable[[torch.Tensor], bool]) -> list[torch.Tensor]:
    """All plain tensors of this moment, but those that are random numbers or made of them."""
    return [t for t in gc.get_objects() if type(t) is torch.Tensor and not drawn(t)]


def is_plain(tensor: Any) -> bool:
    """Whether a tensor is values alone: no weight, nothing that is trained, no whole numbers (they
    are compared wherever they come from)."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.is_floating_point()
        and not (tensor.requires_grad or tensor.is_meta)
        and tensor.numel() > 0
    )


def state_of(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Where its values lie, how often they were written, and on the host (where numpy writes
    unseen) a hash of some."""
    told = 0
    if tensor.device.type == "cpu":
        flat = tensor.detach().reshape(-1)
        told = zlib.crc32(raw_bytes(flat[:: -(-flat.numel() // READ)]))
    return storage(tensor), version(tensor), told
