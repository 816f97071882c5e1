"""Gives every process its rows of every step, from the sample engine, one step ahead.

The place in the data is a `RowPosition`: exact per row, whatever the number of processes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from joymigrate.run.train.feed import RankShare, StepFeed
from joymigrate.run.train.samples.balance import Balancer
from joymigrate.run.train.samples.batch import SampleBatch, join_batches
from joymigrate.run.train.samples.position import (
    RowGroupPiece,
    RowPosition,
    Share,
    begin,
    position_of,
    rows_in,
)
from joymigrate.run.train.samples.readers import Readers, SampleRows

Collate = Callable[[SampleBatch], dict[str, Any]]


class RowStream:
    """One reader's rows from a position to the end of its epoch."""

    def __init__(self, rows: SampleRows, readers: Readers, share: Share, epoch: int) -> None:
        self.rows = rows
        pieces: list[RowGroupPiece] = rows.order.pieces(share, epoch)
        self.batches: Iterator[SampleBatch] = readers.stream(rows, pieces)
        self.held: SampleBatch | None = None
        self.at = 0

    def take(self, count: int) -> SampleBatch:
        """The next `count` rows of those read; rows that were skipped are missing in it."""
        parts: list[SampleBatch] = []
        while count > 0:
            if self.held is None or self.at == self.held.read:
                self.held, self.at = next(self.batches), 0
            stop = min(self.held.read, self.at + count)
            parts.append(self.held.part(self.at, stop))
            count -= stop - self.at
            self.at = stop
        return join_batches(parts) if parts else self.rows.empty()

    def close(self) -> None:
        """Stop reading ahead."""
        self.batches.close()  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True, slots=True)
class PreparedPortion:
    """A portion, what was left out and kept of this process's own rows, and their imbalance."""

    portion: RankShare
    skipped: Mapping[str, int]
    kept: int
    balance: tuple[float, float] | None


class SampleFeed(StepFeed[PreparedPortion]):
    """Portions by the number of rows consumed."""

    def __init__(
        self,
        rows: SampleRows,
        readers: Readers,
        collate: Collate,
        size: int,
        micro: int,
        rank: int,
        ranks: int,
        balancer: Balancer | None = None,
        copies: int = 1,
    ) -> None:
        super().__init__()
        self.copies = copies  # processes that take the same rows
        self.balancer = balancer
        self.balance: tuple[float, float] | None = None  # imbalance before and after, this step
        self.rows, self.readers, self.collate = rows, readers, collate
        self.size, self.micro, self.rank, self.ranks = size, micro, rank, ranks
        self.known = {0: begin(rows.order.rows, ranks)}
        self.stream: RowStream | None = None
        self.next_row = -1  # where the stream stands
        self.skipped: dict[str, int] = {}
        self.started, self.read = time.monotonic(), 0

    # -- positions ----------------------------------------------------------------------------

    def after(self, position: int) -> int:
        """The position behind the step at `position`."""
        _, following = self.known[position].step(self.size // self.ranks, self.rows.order.rows)
        self.known[following.consumed] = following
        for old in [one for one in self.known if one < position]:
            del self.known[old]
        return following.consumed

    def epoch(self, position: int) -> int:
        """How many passes over the rows end at a position or before it."""
        return self.known[position].epoch

    def identity(self) -> dict[str, Any]:
        """The number of rows: a position counts them."""
        return {"samples": self.rows.order.rows}

    def state(self, position: int) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {**self.known[position].document(), "skipped": dict(self.skipped)}

    def restore(self, document: Mapping[str, Any]) -> None:
        """Go on where a checkpoint stands, with this number of processes."""
        known: RowPosition = position_of(document).for_readers(self.ranks)
        self.known = {known.consumed: known}
        self.skipped = dict(document.get("skipped", {}))
        self.ahead = None
        self.next_row = -1

    # -- portions -----------------------------------------------------------------------------

    def take(self, position: int, following: int | None) -> RankShare:
        """The portion at `position`; `following` is prepared meanwhile."""
        ready = self.prepare(position, following)
        for reason, count in ready.skipped.items():
            self.skipped[reason] = self.skipped.get(reason, 0) + count
        self.balance = ready.balance
        return self.weighted(ready.portion, ready.kept)

    def weighted(self, portion: RankShare, kept: int) -> RankShare:
        """The rows of the step over all processes, without those that were skipped."""
        import torch
        import torch.distributed as dist

        self.read += int(portion.weight)
        if self.rows.schema.on_error == "stop":
            return portion
        figures = torch.tensor([float(kept)])
        if self.ranks * self.copies > 1:
            dist.all_reduce(figures)
        return dataclasses.replace(portion, weight=max(1.0, float(figures) / self.copies))

    def figures(self) -> dict[str, float]:
        """How evenly the last step's work was spread over processes, before and after."""
        if self.balance is None:
            return {}
        before, after = self.balance
        return {"imbalance_before": round(before, 4), "imbalance": round(after, 4)}

    def make(self, position: int) -> PreparedPortion:
        """Read and collate one portion."""
        known = self.known[position]
        shares, _ = known.step(self.size // self.ranks, self.rows.order.rows)
        if self.stream is None or self.next_row != position:
            self.close_stream()
            self.stream = RowStream(self.rows, self.readers, known.shares[self.rank], known.epoch)
        mine = rows_in(shares[self.rank])
        batch = self.stream.take(mine)
        everyone = sum(map(rows_in, shares))
        self.next_row = position + everyone
        if sum(map(rows_in, known.shares)) == everyone:  # the epoch ends
            self.close_stream()
        # As many passes on every process: tables that are cut over them are asked by all at once.
        most = max(1, *(rows_in(share) for share in shares))
        skipped, kept, balance = batch.skipped, len(batch), None
        if self.balancer is not None:
            spread = self.balancer.exchange(batch)
            batch, most = spread.batch, max(1, spread.most)
            balance = (spread.before, spread.after)
        edges = [min(len(batch), at) for at in range(0, most + self.micro, self.micro)]
        passes = tuple(self.collate(batch.part(at, end)) for at, end in pairwise(edges))
        share = RankShare(position, passes, float(everyone), 0, ())
        return PreparedPortion(share, skipped, kept, balance)

    def close_stream(self) -> None:
        """Let go of the readers' work ahead."""
        if self.stream is not None:
            self.stream.close()
        self.stream = None

    @property
    def rows_per_s(self) -> float:
        """Rows of all processes since the start."""
        return self.read / max(1e-9, time.monotonic() - self.started)

    def close(self) -> None:
        """Stop preparing."""
        super().close()
        self.close_stream()
        self.readers.close()
