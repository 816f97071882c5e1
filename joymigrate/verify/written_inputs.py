"""Inputs that a model writes in place (static caches): from then on they are its own results."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from joymigrate.verify.run_watch import fingerprint
from joymigrate.verify.tape_entries import storage

Before = list[tuple[torch.Tensor, Any]]


class WrittenInputs:
    """Knows the memory of inputs that changed while a model ran."""

    def __init__(self) -> None:
        self.known: dict[int, weakref.ref[torch.Tensor]] = {}

    def before(self, tensors: Iterable[torch.Tensor]) -> Before:
        """What `after` needs of the inputs of a call."""
        return [(t, state_of(t)) for t in tensors if type(t) is torch.Tensor and not t.is_meta]

    def after(self, given: Before) -> None:
        """The call has returned."""
        for tensor, state in given:
            memory = storage(tensor)
            if memory and state_of(tensor) != state:
                self.known[memory] = weakref.ref(tensor)

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a model has written into this memory, and it was not given back since."""
        held = self.known.get(storage(tensor)) if self.known else None
        return held is not None and held() is not None


def state_of(tensor: torch.Tensor) -> Any:
    """Something that changes when a tensor is written. Inference mode counts no versions."""
    if not tensor.is_inference():
        return tensor._version
    plain = tensor.layout is torch.strided and tensor.numel()
    return repr(fingerprint(tensor).tolist()) if plain else None
