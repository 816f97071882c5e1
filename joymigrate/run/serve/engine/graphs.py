"""Captured steps: decodes of a bucket of sequences, replayed instead of launched again.

A step of single tokens is padded to the next bucket. The padded rows write into a spare block that
no sequence has, and read one token of it. Capture is the device's own graph (`CUDAGraph`); what is
captured reads the buffers kept here, so that a replay only needs them filled.

Not run on a card yet: the padding and the buffers are tested with a capture that computes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.serve.engine.batch import Batch
from joymigrate.run.serve.engine.cache import Cache

Compute = Callable[[], Tensor]
Capture = Callable[[Compute], tuple[Compute, Tensor]]
BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
log = logging.getLogger("joymigrate.serve.engine")
CAPTURED = ("varlen",)  # attention that reads its lengths on the device


def why_not(cache: Cache, device: torch.device) -> str | None:
    """Why decode steps cannot be captured; None when they can."""
    if device.type == "cpu":
        return "a CPU launches nothing that could be replayed"
    if device.type != "cuda":
        return (
            f"attention on {device.type} takes the lengths of its sequences from the host, so a "
            "captured step would repeat those of its capture"
        )
    if cache.attention not in CAPTURED:
        return f"the attention '{cache.attention}' plans each step on the host"
    return None


@dataclass(slots=True)
class GraphSlot:
    """A bucket: its buffers, its captured computation, and where that leaves its result."""

    batch: Batch
    replay: Compute
    result: Tensor


class GraphRunner:
    """Computes batches; those of single tokens from captured steps."""

    def __init__(
        self,
        model: Any,
        cache: Cache,
        *,
        longest: int,
        most: int,
        capture: Capture | None = None,
    ) -> None:
        """`longest` tokens of a sequence, `most` sequences; the cache's last block is spare."""
        self.model = model
        self.cache = cache
        self.width = -(-longest // cache.size)
        self.buckets = [size for size in BUCKETS if size < most] + [most]
        self.capture = capture or capture_graph
        self.slots: dict[int, GraphSlot] = {}
        self.given_up = False

    def give_up(self) -> None:
        """Capture no more, and forget what was: a step failed, and captures hold memory."""
        if not self.given_up:
            log.warning("steps are no longer captured")
        self.given_up = True
        self.slots.clear()

    def __call__(self, batch: Batch) -> Tensor:
        """The normalised states of `batch.rows`."""
        count = len(batch.lengths)
        fits = count == batch.ids.shape[0] == batch.rows.shape[0] and count <= self.buckets[-1]
        special = batch.spans is not None or batch.embeds is not None or batch.adapters
        if self.given_up or not fits or special:
            return self.model.hidden(batch, self.cache)  # type: ignore[no-any-return]
        bucket = next(size for size in self.buckets if size >= count)
        slot = self.slots.get(bucket)
        if slot is None:
            slot = self.slots[bucket] = self.make(bucket)
        fill(slot.batch, batch, count, self.cache.blocks, self.cache.size)
        slot.replay()
        return slot.result[:count]

    def make(self, bucket: int) -> GraphSlot:
        """Capture a bucket, with every row a padded one."""
        device = self.model.device
        spare = self.cache.blocks
        batch = Batch(
            ids=torch.zeros(bucket, dtype=torch.int64, device=device),
            positions=torch.zeros(bucket, dtype=torch.int64, device=device),
            slots=torch.full((bucket,), spare * self.cache.size, dtype=torch.int64, device=device),
            table=torch.full((bucket, self.width), spare, dtype=torch.int32, device=device),
            starts=torch.arange(bucket + 1, dtype=torch.int32, device=device),
            lengths=torch.ones(bucket, dtype=torch.int32, device=device),
            rows=torch.arange(bucket, device=device),
            ranges=[],
        )

        def compute() -> Tensor:
            batch.memo.clear()
            hidden: Tensor = self.model.hidden(batch, self.cache)
            return hidden

        replay, result = self.capture(compute)
        return GraphSlot(batch, replay, result)


def fill(buffers: Batch, batch: Batch, count: int, spare: int, size: int) -> None:
    """Put a batch of `count` sequences into a bucket's buffers, and padded rows behind them."""
    buffers.ids[:count].copy_(batch.ids)
    buffers.positions[:count].copy_(batch.positions)
    buffers.slots[:count].copy_(batch.slots)
    buffers.table[:count, : batch.table.shape[1]].copy_(batch.table)
    buffers.lengths[:count].copy_(torch.tensor(batch.lengths, dtype=torch.int32))
    buffers.ids[count:] = 0
    buffers.positions[count:] = 0
    buffers.slots[count:] = spare * size
    buffers.table[count:, :1] = spare
    buffers.lengths[count:] = 1


def capture_graph(compute: Compute) -> tuple[Compute, Tensor]:
    """Capture on a CUDA device, after a run that lets libraries set themselves up."""
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        compute()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compute()
    return graph.replay, result  # type: ignore[return-value]
