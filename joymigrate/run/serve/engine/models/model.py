"""What the engine asks of a model."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from joymigrate.run.serve.engine.adapters import Selection
from joymigrate.run.serve.engine.batch import Batch
from joymigrate.run.serve.engine.cache import Cache, CacheShape


class CausalModel(Protocol):
    """A causal language model over a paged cache."""

    path: str  # decoder or transformers
    family: str
    dtype: torch.dtype
    device: torch.device
    vocabulary: int
    positions: int  # the most tokens of one sequence
    shapes: list[CacheShape]
    config: Any
    parameters: int
    weight_bytes: int
    linear: str
    changing_base: int | None  # tokens above which rotary embeddings depend on the length
    starts_over: bool  # a text that grows above it is computed anew
    stateful: bool  # layers keep a state of each text besides keys and values
    state_bytes: int  # of each text
    notes: tuple[str, ...]
    selection: Selection  # which rows of a step use which adapter

    def hidden(self, batch: Batch, cache: Cache) -> Tensor:
        """The last layer's normalised states of `batch.rows`: [rows, hidden]."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token, float32: [rows, vocabulary]."""
        ...
