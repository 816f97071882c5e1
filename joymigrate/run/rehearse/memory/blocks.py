"""Tells blocks of device memory apart, from the allocator's own record of what came and went.

The allocator of torch's devices records every block: its address, size, coming and going. Marks
say what was known in between: where parameters, gradients and optimiser states lie, and when
backward passes and optimiser steps begin and end. A block is

- `weights`: it holds a parameter or a buffer of a module at some mark;
- `gradients`: it holds the `.grad` of a parameter;
- `optimiser`: it holds a tensor of an optimiser's state;
- `activations`: it came outside of backward passes and optimiser steps, and was still held when a
  backward pass began (batches on the device are among them);
- `other`: anything else, such as temporary results.

Sizes are those that were asked for; allocators round them up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

CATEGORIES = ("weights", "gradients", "optimiser", "activations", "other")
KNOWN = CATEGORIES[:3]  # what marks name
MOST_POINTS = 240  # of a curve


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A block came (`size` bytes) or went (`size` None)."""

    address: int
    size: int | None


@dataclass(frozen=True, slots=True)
class MemoryMark:
    """What was known after so many blocks had come and gone (`came`, `went`).

    `kind`: `backward begins`, `backward ends`, `step begins`, `step ends`, or `look`. `owners` are
    addresses that a category's tensors begin at.
    """

    kind: str
    came: int
    went: int
    owners: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(slots=True)
class Allocation:
    """One allocation. `age` counts the backward passes that had ended when it came."""

    address: int
    size: int
    came: int
    age: int
    forward: bool
    went: int | None = None
    category: str = "other"
    saved: int | None = None  # the backward pass at whose beginning it was held


@dataclass(frozen=True, slots=True)
class Composition:
    """Memory by category over the events; `steps` are the events at which optimiser steps ended.

    `points` are (x, bytes of each category): x counts optimiser steps, or events where there was
    none. `peak` is the moment with the most bytes.
    """

    steps: int
    points: tuple[tuple[float, tuple[int, ...]], ...]
    peak: tuple[float, tuple[int, ...]]


def events_of(trace: Iterable[Mapping[str, object]]) -> list[BlockEvent]:
    """The blocks of an allocator's trace (`torch.<device>.memory._snapshot`), in their order."""
    found = []
    for entry in trace:
        if entry["action"] == "alloc":
            found.append(BlockEvent(int(str(entry["addr"])), int(str(entry["size"]))))
        elif entry["action"] == "free_requested":  # from here on the program no longer holds it
            found.append(BlockEvent(int(str(entry["addr"])), None))
    return found


def composition(events: Sequence[BlockEvent], marks: Sequence[MemoryMark]) -> Composition:
    """What the memory held, at every event."""
    replay = BlockReplay(marks)
    for event in events:
        replay.marks_here()
        replay.take(event)
    replay.marks_here()
    replay.settle()
    return curve(replay.blocks, len(events), replay.step_ends)


class BlockReplay:
    """Goes through the events once more, and learns at each mark what blocks are."""

    def __init__(self, marks: Sequence[MemoryMark]) -> None:
        self.marks = list(marks)
        self.blocks: list[Allocation] = []
        self.live: dict[int, Allocation] = {}
        self.came = self.went = self.place = 0
        self.backward = self.step = False
        self.age = 0
        self.step_ends: list[int] = []

    def marks_here(self) -> None:
        """Apply the marks that were set at this place."""
        while self.marks and (self.marks[0].came, self.marks[0].went) <= (self.came, self.went):
            self.apply(self.marks.pop(0))

    def apply(self, mark: MemoryMark) -> None:
        """What a mark tells."""
        if mark.kind == "backward begins":
            self.backward = True
            for block in self.live.values():
                if block.forward and block.saved is None:
                    block.saved = self.age
        elif mark.kind == "backward ends":
            self.backward = False
            self.age += 1
        elif mark.kind.startswith("step"):
            self.step = mark.kind == "step begins"
        self.name(mark.owners)
        if mark.kind == "step ends":
            self.step_ends.append(self.place)

    def name(self, owners: Mapping[str, Sequence[int]]) -> None:
        """Give the blocks at these addresses their category; the first one stays."""
        if not any(owners.values()):
            return
        starts = sorted(self.live)
        for category in KNOWN:
            for address in owners.get(category, ()):
                index = bisect_right(starts, address) - 1
                block = self.live[starts[index]] if index >= 0 else None
                if block and address < block.address + max(block.size, 1):
                    block.category = block.category if block.category in KNOWN else category

    def take(self, event: BlockEvent) -> None:
        """One block comes or goes."""
        if event.size is None:
            block = self.live.pop(event.address, None)
            if block is not None:
                block.went = self.place
            self.went += 1
        else:
            forward = not (self.backward or self.step)
            block = Allocation(event.address, event.size, self.place, self.age, forward)
            self.live[event.address] = block
            self.blocks.append(block)
            self.came += 1
        self.place += 1

    def settle(self) -> None:
        """Decide about activations: of this forward pass, and not there to stay.

        What came before the first backward pass and is never released is no activation: a table,
        a data set on the device.
        """
        for block in self.blocks:
            if block.category in KNOWN or block.saved is None or block.saved != block.age:
                continue
            if block.age > 0 or block.went is not None:
                block.category = "activations"


def curve(blocks: Sequence[Allocation], events: int, step_ends: Sequence[int]) -> Composition:
    """The bytes of every category over time, thinned so that each stretch keeps its peak."""
    changes: list[list[tuple[int, int]]] = [[] for _ in range(events + 1)]
    for block in blocks:
        index = CATEGORIES.index(block.category)
        changes[block.came].append((index, block.size))
        if block.went is not None:
            changes[block.went].append((index, -block.size))
    held = [0] * len(CATEGORIES)
    ends = list(step_ends)
    stride = max(1, -(-events // MOST_POINTS))
    points: list[tuple[float, tuple[int, ...]]] = []
    peak = best = (0.0, tuple(held))
    for place in range(events):
        for index, size in changes[place]:
            held[index] += size
        now = (at(place, ends, events), tuple(held))
        best = now if sum(now[1]) >= sum(best[1]) or place % stride == 0 else best
        peak = now if sum(now[1]) > sum(peak[1]) else peak
        if place % stride == stride - 1 or place == events - 1:
            points.append(best)
    return Composition(len(ends), tuple(points), peak)


def at(place: int, ends: Sequence[int], events: int) -> float:
    """A place in the events as optimiser steps: 1.5 is in the middle of the second one. Without
    steps, the event's number."""
    if not ends:
        return float(place)
    number = bisect_right(ends, place)
    first = ends[number - 1] if number else 0
    last = ends[number] if number < len(ends) else events
    return round(number + (place - first) / max(1, last - first), 4)
