"""Rotary embeddings: cosines and sines by position, of every kind that transformers knows.

Kinds with a fixed base are a table. `dynamic` and `longrope` look at the length of the sequence:
a prompt is rotated for its own length, every later token for the length it makes, which is what
token-by-token generation does. Their prefixes can be shared only below that length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHANGING = ("dynamic", "longrope")


class RotaryTables:
    """Tables of cos and sin [positions, 1, size]; `size` is what of a head is rotated."""

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device) -> None:
        parameters = dict(config.rope_parameters)
        self.config = config
        self.kind = str(parameters.get("rope_type", "default"))
        self.dtype = dtype
        self.device = device
        self.frequencies, self.scaling = frequencies(config, self.kind, None)
        self.size = 2 * self.frequencies.numel()
        self.changes_above: int | None = None
        if self.kind in CHANGING:
            original = parameters.get("original_max_position_embeddings")
            self.changes_above = int(original or config.max_position_embeddings)
        self.by_length: dict[int, Tensor] = {}
        self.cos, self.sin = self.table(min(int(config.max_position_embeddings), 8192))

    def table(self, positions: int) -> tuple[Tensor, Tensor]:
        """cos and sin of the first positions."""
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * self.frequencies
        return self.finish(angles)

    def finish(self, angles: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of angles [T, size/2] as [T, 1, size]; the first half of sin is negated, so
        that x·cos + swap(x)·sin rotates."""
        cos, sin = angles.cos() * self.scaling, angles.sin() * self.scaling
        both = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return tuple(t[:, None].to(self.device, self.dtype) for t in both)  # type: ignore[return-value]

    def at(self, positions: Tensor, spans: Tensor | None, longest: int) -> tuple[Tensor, Tensor]:
        """cos and sin for tokens [T]; `longest` is above every position (0: the
        table is long enough)."""
        if self.changes_above is not None and spans is not None and longest > self.changes_above:
            return self.varying(positions, spans)
        if longest > self.cos.shape[0]:
            self.cos, self.sin = self.table(max(longest, 2 * self.cos.shape[0]))
        return self.cos[positions], self.sin[positions]

    def varying(self, positions: Tensor, spans: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin where each token's frequencies follow from the length it was computed at."""
        rows = torch.stack([self.of_length(length) for length in spans.tolist()])
        return self.finish(positions.cpu().float()[:, None] * rows)

    def of_length(self, length: int) -> Tensor:
        """The frequencies for a length."""
        assert self.changes_above is not None
        if length <= self.changes_above:
            return self.frequencies
        if self.kind == "longrope":
            length = self.changes_above + 1  # one set for all longer ones
        if length not in self.by_length:
            self.by_length[length] = frequencies(self.config, self.kind, length)[0]
        return self.by_length[length]


def frequencies(config: Any, kind: str, length: int | None) -> tuple[Tensor, float]:
    """Inverse frequencies [size/2] of a kind, and what cos and sin are scaled by."""
    if kind == "default":
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        parameters = config.rope_parameters
        share = parameters.get("partial_rotary_factor") or getattr(
            config, "partial_rotary_factor", 1.0
        )
        size = int(head * share)
        steps = torch.arange(0, size, 2, dtype=torch.int64).float() / size
        return 1.0 / (parameters["rope_theta"] ** steps), 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    made, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)
    return made.float(), float(scaling)


def halves(heads: int, size: int, rotated: int) -> Tensor:
    """Order of outputs that turns neighbouring pairs into two halves, for `heads` heads."""
    pairs = torch.arange(rotated).view(-1, 2)
    one = torch.cat((pairs[:, 0], pairs[:, 1], torch.arange(rotated, size)))
    return (torch.arange(heads)[:, None] * size + one).flatten()
