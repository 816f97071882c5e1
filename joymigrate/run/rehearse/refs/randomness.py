"""Where a reference takes its random numbers from: (seed, offset) pairs, and masks made of them.

Fused attention and dropout return the seed and the offset of their mask, and the backward
operator makes the same mask again from them. The chip runs Philox over (seed, offset); here a CPU
generator is seeded with both, so masks are reproducible but not bit-equal to a chip's.
"""

from __future__ import annotations

import torch
from torch import Tensor

Pair = tuple[int, int]


def next_pair() -> Pair:
    """The (seed, offset) of the next random operator: the CPU generator's seed, and an offset drawn
    from it (which advances it)."""
    offset = int(torch.randint(0, 2**31 - 1, (), generator=torch.default_generator))
    return torch.initial_seed() & (2**63 - 1), offset


def generator_of(seed: int, offset: int) -> torch.Generator:
    """A CPU generator that depends on seed and offset alone."""
    mixed = (seed * 0x9E3779B97F4A7C15 + offset * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**63
    return torch.Generator().manual_seed(mixed)


def keep_mask(count: int, keep_prob: float, seed: int, offset: int) -> Tensor:
    """`count` booleans, True (kept) with probability `keep_prob`."""
    return torch.rand(count, generator=generator_of(seed, offset)) < keep_prob


def pack_bits(mask: Tensor) -> Tensor:
    """Booleans → uint8, eight to a byte, lowest bit first, padded to 128 bits (the chip's form)."""
    flat = mask.reshape(-1).to(torch.uint8)
    padded = torch.zeros((flat.numel() + 127) // 128 * 128, dtype=torch.uint8)
    padded[: flat.numel()] = flat
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
    return (padded.view(-1, 8) * weights).sum(1).to(torch.uint8)


def unpack_bits(packed: Tensor, count: int) -> Tensor:
    """The first `count` booleans of a mask made by `pack_bits`."""
    shifts = torch.arange(8, dtype=torch.uint8)
    bits = (packed.reshape(-1, 1) >> shifts) & 1
    return bits.reshape(-1)[:count].bool()
