"""Random numbers of the device: a CPU generator made from the device generator's seed and offset.

`manual_seed`, `get_rng_state` and generators of the program's own therefore work as on the chip:
the same seed gives the same numbers, and each use moves the offset on. The numbers themselves are
torch's CPU generator's, not the chip's Philox.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

STEP = 4  # a multiple of four, as Philox counts
_MASK = (1 << 63) - 1


def device_generator(index: int) -> torch.Generator:
    """The default generator of device `index`."""
    import torch_npu

    torch_npu.npu._lazy_init()
    generator: torch.Generator = torch_npu.npu.default_generators[index]
    return generator


def next_pair(generator: torch.Generator) -> tuple[int, int]:
    """(seed, offset) of the next random operator; moves the offset on."""
    state = generator.get_state()
    words = state.view(torch.int64)  # seed, offset
    seed, offset = int(words[-2]), int(words[-1])
    words[-1] = offset + STEP
    generator.set_state(state)
    return seed & _MASK, offset


def host_generator(generator: torch.Generator) -> torch.Generator:
    """A CPU generator for one operator."""
    seed, offset = next_pair(generator)
    return torch.Generator().manual_seed(mix(seed, offset))


def mix(seed: int, offset: int) -> int:
    """One 63-bit seed from two numbers (odd multipliers of splitmix64)."""
    return (seed * 0x9E3779B97F4A7C15 ^ (offset + 1) * 0xBF58476D1CE4E5B9) & _MASK


@contextmanager
def follow_seed(generator: torch.Generator) -> Iterator[None]:
    """Let torch's default CPU generator follow the device's for one operator."""
    default = torch.default_generator
    before = default.get_state()
    seed, offset = next_pair(generator)
    default.manual_seed(mix(seed, offset))
    try:
        yield
    finally:
        default.set_state(before)
