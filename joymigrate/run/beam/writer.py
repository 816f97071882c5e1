"""What beam search asks of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor


class BeamWriter(Protocol):
    """A model that reads a prompt once, and then writes code by code for many beams."""

    def begin(self, prompts: Sequence[Any]) -> list[tuple[Any, Tensor]]:
        """For each prompt a state (its keys and values, stored once) and logits [V]."""
        ...

    def step(
        self, states: Sequence[Any], parents: Sequence[Tensor], tokens: Sequence[Tensor]
    ) -> list[Tensor]:
        """Logits [W, V] behind the new codes of each request.

        `parents` [W]: of which beam of the round before each new beam comes; `tokens` [W]: the code
        that it wrote. The states remember both. Requests may be in different rounds.
        """
        ...
