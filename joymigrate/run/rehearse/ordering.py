"""Which accesses to memory have no order between them: the tables of `--mode async`.

Every stream has a vector clock (shim/order.c). An access is known by its stream and its number in
that stream; it comes before another one exactly when the other's clock has reached that number.
Two accesses to the same bytes, one of them a write, without such an order are a race, whether it
would show on a given day or not. (The method is that of torch's own stream sanitizer,
`torch.cuda._sanitizer`; here bytes are compared instead of tensors, and reused memory counts.)

Where two sets of bytes can't be compared nothing is said.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

RUNS_LIMIT = 512  # a tensor with more separate runs of bytes is only compared as a whole
KEPT = 64  # accesses kept per block of memory

Runs = tuple[tuple[int, int], ...]


@lru_cache(maxsize=8192)
def runs_of(size: tuple[int, ...], stride: tuple[int, ...], item: int) -> tuple[int, Runs | None]:
    """Bytes from the first to the last that a tensor of this form has, and its separate runs of
    bytes as (start, end); no runs where it has no gaps, None where there are too many."""
    length = item
    dims = []
    for count, step in sorted(zip(size, stride, strict=True), key=lambda one: one[1]):
        if not count:
            return 0, ()
        if count == 1 or not step:  # expanded: the same bytes again
            continue
        length += (count - 1) * step * item
        dims.append((count, step * item))
    run = item
    while dims and dims[0][1] == run:
        run *= dims.pop(0)[0]
    if not dims:
        return length, ()
    total = 1
    for count, _ in dims:
        total *= count
    if total > RUNS_LIMIT:
        return length, None
    starts = (sum(one) for one in itertools.product(*(range(0, c * s, s) for c, s in dims)))
    return length, tuple((start, start + run) for start in sorted(starts))


@dataclass(slots=True, eq=False)
class Access:
    """One access of a stream to bytes [low, high). `loose`: no later work of its own stream is
    ordered after it, only what follows a wait of the host or an event."""

    low: int
    high: int
    runs: Runs | None
    form: object
    writes: bool
    stream: int
    sequence: int
    operator: str
    where: str
    loose: str = ""
    told: set[int] = field(default_factory=set)  # streams that were reported to race with it


@dataclass(slots=True)
class BlockUse:
    """One block: what was done with it, and what is left of the blocks that it was made of."""

    low: int
    high: int
    accesses: list[Access] = field(default_factory=list)
    before: list[Access] = field(default_factory=list)


class VectorClock(Protocol):
    """A vector clock: how much of each stream's work is known to be over, by its number."""

    def __getitem__(self, stream: int, /) -> int: ...


@dataclass(frozen=True, slots=True)
class Clocks:
    """What a piece of work comes after: its own clock, the host's, and the allocators'."""

    own: VectorClock
    host: VectorClock
    pool: VectorClock


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses without an order; `reused`: to memory that changed its owner in between."""

    first: Access
    second: Access
    reused: bool


def meet(one: Access, other: Access) -> bool:
    """Whether two accesses surely share a byte."""
    if one.high <= other.low or other.high <= one.low:
        return False
    if not one.runs and not other.runs:
        # Without gaps, or unknown: then only as a whole.
        if one.runs is None and not covers(other, one):
            return one.low == other.low and one.form == other.form
        return other.runs is not None or covers(one, other)
    if one.low == other.low and one.form == other.form:
        return True
    if one.runs is None or other.runs is None:
        dense, odd = (other, one) if one.runs is None else (one, other)
        return dense.runs == () and covers(dense, odd)
    return share(list(spans(one)), list(spans(other)))


def covers(one: Access, other: Access) -> bool:
    """Whether one has every byte between the other's first and last."""
    return one.runs == () and one.low <= other.low and other.high <= one.high


def spans(access: Access) -> Iterator[tuple[int, int]]:
    """The runs of bytes as addresses."""
    if not access.runs:
        yield access.low, access.high
    else:
        yield from ((access.low + start, access.low + end) for start, end in access.runs)


def share(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> bool:
    """Whether two sorted lists of ranges have a byte in common."""
    i = j = 0
    while i < len(one) and j < len(other):
        if one[i][1] <= other[j][0]:
            i += 1
        elif other[j][1] <= one[i][0]:
            j += 1
        else:
            return True
    return False


def is_before(old: Access, new: Access, clocks: Clocks, reused: bool) -> bool:
    """Whether something orders `old` before `new`."""
    if old.stream == new.stream:
        return not old.loose or clocks.host[old.stream] >= old.sequence
    if clocks.own[old.stream] >= old.sequence:
        return True
    return reused and clocks.pool[old.stream] >= old.sequence


class Ordering:
    """The accesses of one process, by address."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.blocks: dict[int, BlockUse] = {}

    def over(self, low: int, high: int) -> list[BlockUse]:
        """The blocks that have a byte of a range; one is made where there is none."""
        found = []
        at = bisect_right(self.starts, low) - 1
        for start in self.starts[max(at, 0) :]:
            if start >= high:
                break
            block = self.blocks[start]
            if block.high > low:
                found.append(block)
        if not found:
            found.append(self.add(BlockUse(low, high)))
        return found

    def add(self, block: BlockUse) -> BlockUse:
        """Keep a block that overlaps no other."""
        insort(self.starts, block.low)
        self.blocks[block.low] = block
        return block

    def drop(self, block: BlockUse) -> None:
        """Forget a block."""
        del self.blocks[block.low]
        del self.starts[bisect_right(self.starts, block.low) - 1]

    def allocate(self, low: int, high: int) -> None:
        """A new tensor owns these bytes; what was done with them before was another's."""
        if high <= low:
            return
        before: list[Access] = []
        for block in self.over(low, high):
            left = [*block.accesses, *block.before]
            self.drop(block)
            before += [one for one in left if one.low < high and low < one.high]
            for start, end in ((block.low, low), (high, block.high)):
                rest = [one for one in left if one.low < end and start < one.high]
                if start < end and rest:
                    self.add(BlockUse(start, end, [], rest))
        self.add(BlockUse(low, high, [], before[-KEPT:]))

    def check(self, new: Access, clocks: Clocks, shared: bool = False) -> list[Race]:
        """Keep an access, and return the earlier ones that it has no order with.

        `shared`: memory of the host, whose owner may have changed unseen.
        """
        races: list[Race] = []
        for block in self.over(new.low, new.high):
            races += self.check_block(block, new, clocks, shared)
        return races

    def check_block(
        self, block: BlockUse, new: Access, clocks: Clocks, shared: bool
    ) -> Iterator[Race]:
        kept = []
        for old in block.accesses:
            if clocks.host[old.stream] >= old.sequence:
                continue  # the host waited for it: everything from now on comes after
            ordered = is_before(old, new, clocks, shared)
            clash = (old.writes or new.writes) and not ordered and new.stream not in old.told
            if clash and meet(old, new):
                old.told.add(new.stream)
                yield Race(old, new, False)
            if not (ordered and not old.loose and replaces(new, old)):
                kept.append(old)
        rest = []
        for old in block.before:
            if is_before(old, new, clocks, True):
                continue
            # The tensor is another one: to write it is enough to disturb the former owner.
            if (old.writes or new.writes) and meet(old, new):
                yield Race(old, new, True)
            else:
                rest.append(old)
        block.before = rest
        kept.append(new)
        block.accesses = kept[-KEPT:]


def replaces(new: Access, old: Access) -> bool:
    """Whether everything that is ordered after `new` is so after `old`, and it is no less."""
    if old.writes and not new.writes:
        return False
    if new.low == old.low and new.form == old.form:
        return new.writes or new.stream == old.stream
    return new.writes and covers(new, old)
