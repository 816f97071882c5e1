"""Gives every process its share of every step's samples, in the run's order, one step ahead."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from joymigrate.run.train.columns import Batch, Sample
from joymigrate.run.train.order import SampleOrder
from joymigrate.run.train.tasks import Task
from joymigrate.run.train.tasks.task import SampleSource


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


class BatchFeed:
    """Portions by stream position. The next one is made while the present one is used."""

    def __init__(
        self,
        task: Task,
        samples: SampleSource,
        order: SampleOrder,
        size: int,
        micro: int,
        rank: int,
        ranks: int,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        self.task, self.samples, self.order = task, samples, order
        self.size, self.micro, self.rank, self.ranks = size, micro, rank, ranks
        self.data = dict(data or {})
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="feed")
        self.ahead: tuple[int, Future[RankShare]] | None = None

    def take(self, position: int, following: int | None) -> RankShare:
        """The portion at `position`; `following` is prepared meanwhile."""
        if self.ahead is not None and self.ahead[0] == position:
            found = self.ahead[1].result()
        else:
            found = self.make(position)
        self.ahead = None
        if following is not None:
            self.ahead = (following, self.pool.submit(self.make, following))
        return found

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

    def samples_at(self, position: int) -> list[int]:
        """The samples of the step at a position, over all processes."""
        return [int(index) for index in self.order.at(position, self.size)]

    def identity(self) -> dict[str, Any]:
        """What the order of samples depends on; see data_state.py."""
        return self.data

    def state(self, position: int) -> dict[str, Any] | None:
        """What a checkpoint keeps beside the position: nothing, the order is a function of it."""
        return None

    def figures(self) -> dict[str, float]:
        """Nothing to tell of a step beside its loss."""
        return {}

    def restore(self, document: Any) -> None:
        """Nothing to go back to."""

    def close(self) -> None:
        """Stop preparing."""
        self.pool.shutdown(wait=True, cancel_futures=True)


def move_batch(batch: Batch, device: Any) -> Batch:
    """A batch on the device; nothing to do on the CPU."""
    if device.type == "cpu":
        return batch
    return {
        name: value.to(device, non_blocking=True) if hasattr(value, "to") else value
        for name, value in batch.items()
    }
