"""What other ranks hold: the kernels that communicate by themselves get it through this door.

Every rank of the group calls at the same time, as on the chip. The bytes go through the simulated
HCCL of the process, whose group is found by the name that the program hands to the kernel.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache

import torch
from torch import Tensor

LIBRARY = "libhccl.so"
BYTES, NUMBERS = 7, 5  # HCCL's data types: uint8, int64


@cache
def library() -> ctypes.CDLL:
    """The simulated HCCL, which the rehearsal has loaded."""
    found = ctypes.CDLL(LIBRARY)
    found.joy_group.restype = ctypes.c_void_p
    found.HcclGetErrorString.restype = ctypes.c_char_p
    return found


class RankGroup:
    """One process group as a kernel sees it. One rank, or no name, is this process alone."""

    def __init__(self, name: str, ranks: int | None = None, rank: int = -1) -> None:
        """`ranks`, `rank`: what the call says; None and -1 where it says nothing."""
        self.ranks = 1
        self.rank = 0
        if ranks == 1 or (ranks is None and not name):
            return
        found = library().joy_group(name.encode(), rank)
        if not found:
            raise RuntimeError(f"rehearsal device: this process has no group named {name!r}")
        self.handle = ctypes.c_void_p(found)
        self.ranks = self._number("HcclGetRankSize")
        self.rank = self._number("HcclGetRankId")
        if ranks not in (None, self.ranks):
            raise RuntimeError(
                f"rehearsal device: group {name!r} has {self.ranks} ranks, not {ranks}"
            )

    def _number(self, function: str) -> int:
        number = ctypes.c_uint32()
        library()[function](self.handle, ctypes.byref(number))
        return number.value

    def _send(self, function: str, *arguments: object) -> None:
        status = library()[function](*arguments, self.handle, None)
        if status:
            raise RuntimeError(library().HcclGetErrorString(status).decode())

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        """Everybody's tensor; dtypes are equal, the first axis may differ, the others don't."""
        if self.ranks == 1:
            return [tensor]
        mine = tensor.contiguous()
        length, lengths = torch.tensor([len(mine)]), torch.empty(self.ranks, dtype=torch.int64)
        self._send("HcclAllGather", *map(at, (length, lengths)), ctypes.c_uint64(1), NUMBERS)
        row = mine.element_size() * math.prod(mine.shape[1:])
        counts = [int(one) * row for one in lengths]
        starts = [sum(counts[:rank]) for rank in range(self.ranks)]
        received = torch.empty(max(sum(counts), 1), dtype=torch.uint8)
        numbers = ctypes.c_uint64 * self.ranks
        self._send(
            "HcclAllGatherV",
            at(mine),
            ctypes.c_uint64(counts[self.rank]),
            at(received),
            numbers(*counts),
            numbers(*starts),
            BYTES,
        )
        parts = [mine.new_empty((int(one), *mine.shape[1:])) for one in lengths]
        for part, start, count in zip(parts, starts, counts, strict=True):
            ctypes.memmove(part.data_ptr(), received.data_ptr() + start, count)
        return parts

    def summed(self, tensor: Tensor) -> Tensor:
        """The sum of everybody's tensor, rank by rank, in its precision."""
        total, *others = self.gathered(tensor)
        for other in others:
            total = total + other
        return total


def at(tensor: Tensor) -> ctypes.c_void_p:
    """Where a tensor's bytes begin."""
    return ctypes.c_void_p(tensor.data_ptr())
