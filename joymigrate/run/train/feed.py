"""Gives every process its share of every step's samples, in the run's order, one step ahead."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from joymigrate.run.train.columns import Batch, Sample
from joymigrate.run.train.mixture import MixedOrder
from joymigrate.run.train.order import SampleOrder
from joymigrate.run.train.tasks import Task
from joymigrate.run.train.tasks.task import SampleSource

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class RankShare:
    """What one process sees of one step.

    `weight` is the targets of the whole step over all processes, `tokens` the real tokens of this
    portion; `first` the stream position of the step.
    """

    first: int
    passes: tuple[Batch, ...]
    weight: float
    tokens: int
    samples: tuple[int, ...]


class JoinedSamples:
    """The samples of several sources, one after another."""

    def __init__(self, parts: Sequence[SampleSource]) -> None:
        self.parts = parts
        self.ends = [*itertools.accumulate(map(len, parts))]

    def __len__(self) -> int:
        return self.ends[-1]

    def find(self, index: int) -> tuple[SampleSource, int]:
        """The source of a sample, and its number there."""
        part = bisect.bisect_right(self.ends, index)
        return self.parts[part], index - (self.ends[part - 1] if part else 0)

    def __getitem__(self, index: int) -> Sample:
        part, inside = self.find(index)
        return part[inside]

    def weight(self, index: int) -> float:
        """What a sample counts."""
        part, inside = self.find(index)
        return part.weight(inside)


class StepFeed(Generic[Made]):
    """Gives a rank its share of the step at a position, and prepares the next one meanwhile."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="feed")
        self.ahead: tuple[int, Future[Made]] | None = None

    def make(self, position: int) -> Made:
        """Read and collate the portion at a position."""
        raise NotImplementedError

    def prepare(self, position: int, following: int | None) -> Made:
        """What `make` gives for `position`; for `following` it begins now."""
        ahead, self.ahead = self.ahead, None
        found = ahead[1].result() if ahead is not None else None
        if found is None or ahead is None or ahead[0] != position:
            found = self.make(position)
        if following is not None:
            self.ahead = (following, self.pool.submit(self.make, following))
        return found

    def take(self, position: int, following: int | None) -> RankShare:
        """The portion at `position`; `following` is prepared meanwhile."""
        raise NotImplementedError

    def after(self, position: int) -> int:
        """The position behind the step at `position`."""
        raise NotImplementedError

    def epoch(self, position: int) -> int:
        """How many passes over the data end at a position or before it."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """What the order of samples depends on; see data_state.py."""
        raise NotImplementedError

    def samples_at(self, position: int) -> list[int]:
        """The samples of the step at a position, over all processes, where they have numbers."""
        return []

    def state(self, position: int) -> dict[str, Any] | None:
        """What a checkpoint keeps beside the position; nothing where the order follows from it."""
        return None

    def restore(self, document: Any) -> None:
        """Go on where a checkpoint stands."""

    def figures(self) -> dict[str, Any]:
        """What there is to tell of a step beside its loss."""
        return {}

    def close(self) -> None:
        """Stop preparing."""
        self.pool.shutdown(wait=True, cancel_futures=True)


class BatchFeed(StepFeed[RankShare]):
    """Portions by stream position, of samples that have numbers."""

    def __init__(
        self,
        task: Task,
        samples: SampleSource,
        order: SampleOrder | MixedOrder,
        size: int,
        micro: int,
        rank: int,
        ranks: int,
        data: Mapping[str, Any] | None = None,
        sources: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.sources, self.taken = sources, 0  # names; samples consumed
        self.task, self.samples, self.order = task, samples, order
        self.size, self.micro, self.rank, self.ranks = size, micro, rank, ranks
        self.data = dict(data or {})

    def take(self, position: int, following: int | None) -> RankShare:
        """The portion at `position`; `following` is prepared meanwhile."""
        self.taken = position + self.size
        return self.prepare(position, following)

    def figures(self) -> dict[str, Any]:
        """How many samples of each source of a mixture were consumed."""
        if not isinstance(self.order, MixedOrder):
            return {}
        counts = self.order.counts(self.taken).tolist()
        return {"sources": dict(zip(self.sources, counts, strict=True))}

    def make(self, position: int) -> RankShare:
        """Read and collate one portion."""
        everyone = self.order.at(position, self.size)
        weight = sum(self.samples.weight(int(index)) for index in everyone)
        part = self.size // self.ranks
        mine = [int(index) for index in everyone[self.rank * part : (self.rank + 1) * part]]
        read = [self.samples[index] for index in mine]
        passes = tuple(
            self.task.collate(read[at : at + self.micro]) for at in range(0, len(read), self.micro)
        )
        tokens = sum(len(sample["tokens"]) for sample in read if "tokens" in sample)
        return RankShare(position, passes, weight, tokens, tuple(mine))

    def after(self, position: int) -> int:
        """The position behind the step at `position`."""
        return position + self.size

    def epoch(self, position: int) -> int:
        """How many passes over the samples end at a position or before it."""
        return self.order.epoch(position)

    def samples_at(self, position: int) -> list[int]:
        """The samples of the step at a position, over all processes."""
        return [int(index) for index in self.order.at(position, self.size)]

    def identity(self) -> dict[str, Any]:
        """The pieces of the data that the order runs over."""
        return self.data


def move_batch(batch: Batch, device: Any) -> Batch:
    """A batch on the device; nothing to do on the CPU."""
    if device.type == "cpu":
        return batch
    return {
        name: value.to(device, non_blocking=True) if hasattr(value, "to") else value
        for name, value in batch.items()
    }
