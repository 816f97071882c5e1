"""Random inputs for cases: reproducible, made on the CPU in float64."""

from __future__ import annotations

import torch
from torch import Tensor


class Samples:
    """A seeded source of tensors."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normal numbers of standard deviation `scale`."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64) * scale

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Uniform numbers in [low, high)."""
        made = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return low + made * (high - low)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Integers in [low, high)."""
        return torch.randint(low, high, shape, generator=self.generator)

    def angles(self, *shape: int, interleaved: bool = False) -> tuple[Tensor, Tensor]:
        """cos and sin of rotary embeddings, [..., positions, size]: each angle stands twice."""
        *lead, positions, size = shape
        half = self.uniform(*lead, positions, size // 2, high=6.28)
        full = half.repeat_interleave(2, -1) if interleaved else torch.cat((half, half), -1)
        return full.cos(), full.sin()
