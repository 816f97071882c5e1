"""The tensors of one step: packed tokens of all its chunks, and where they stand in the cache."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.serve.engine.scheduler import Chunk


@dataclass(slots=True)
class Batch:
    """T tokens of S chunks. `positions` is [T], or [3, T] where images have two axes.

    `spans` [T] are lengths that rotary embeddings of a changing base look at: the prompt's for its
    tokens, then one more with each (or, with `whole`, the whole text's for all). `embeds` replaces
    the embeddings of some rows, and `deep` [rows, hidden] is added to them behind each of the first
    layers. `adapters` are the rows that each adapter changes (None: all).
    `rows` are those whose hidden states are wanted, `ranges` which of them belong to each chunk.
    `chunks` are what it was made of; `memo` is shared by the layers' attention.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    table: Tensor
    starts: Any
    lengths: Any
    rows: Tensor
    ranges: list[tuple[int, int]]
    spans: Tensor | None = None
    furthest: int = 0  # the largest span: a prompt in pieces is rotated for its whole length
    embeds: tuple[Tensor, Tensor] | None = None
    deep: list[Tensor] = field(default_factory=list)
    adapters: list[tuple[int, Tensor | None]] = field(default_factory=list)
    chunks: Many[Chunk] = ()
    memo: dict[Any, Any] = field(default_factory=dict)


def arrange(chunks: Many[Chunk]) -> list[Chunk]:
    """Prompts first, then single tokens from the shortest to the longest sequence."""
    return sorted(chunks, key=lambda c: (c.width == 1, c.start if c.width == 1 else 0))


def make_batch(
    chunks: Many[Chunk],
    size: int,
    device: torch.device,
    *,
    spans: bool = False,
    whole: bool = False,
) -> Batch:
    """The tensors for chunks in the order of `arrange`; `size` tokens make a block."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    rows: list[int] = []
    ranges: list[tuple[int, int]] = []
    lengths: list[int] = []
    starts = [0]
    reach: list[int] = []
    for chunk in chunks:
        sequence, end = chunk.sequence, chunk.start + chunk.width
        blocks = sequence.blocks
        ids += sequence.ids[chunk.start : chunk.start + chunk.count]
        ids += chunk.drafts
        positions += range(chunk.start, end)
        slots += [blocks[p // size] * size + p % size for p in range(chunk.start, end)]
        starts.append(len(ids))
        lengths.append(end)
        if whole:
            reach += [len(sequence.ids)] * chunk.width
        elif spans:
            reach += [max(sequence.prompt, p + 1) for p in range(chunk.start, end)]
        first = len(rows)
        if sequence.every:
            rows += range(starts[-2], starts[-1])
        elif chunk.last:
            rows += range(len(ids) - 1 - len(chunk.drafts), len(ids))
        ranges.append((first, len(rows)))
    width = max(-(-length // size) for length in lengths)
    table = [
        (blocks := chunk.sequence.blocks[:width]) + [0] * (width - len(blocks)) for chunk in chunks
    ]
    return Batch(
        ids=torch.tensor(ids, device=device),
        positions=torch.tensor(positions, device=device),
        slots=torch.tensor(slots, device=device),
        table=torch.tensor(table, device=device),
        starts=tuple(starts),
        lengths=tuple(lengths),
        rows=torch.tensor(rows, dtype=torch.int64, device=device),
        ranges=ranges,
        spans=torch.tensor(reach, device=device) if spans else None,
        furthest=max(reach, default=0),
        adapters=adapt_rows(chunks, starts, device),
        chunks=chunks,
    )


def adapt_rows(
    chunks: Many[Chunk], starts: list[int], device: torch.device
) -> list[tuple[int, Tensor | None]]:
    """The rows of each adapter's chunks."""
    rows: dict[int, list[int]] = {}
    for chunk, first, last in zip(chunks, starts, starts[1:], strict=False):
        if chunk.sequence.adapter:
            rows.setdefault(chunk.sequence.adapter, []).extend(range(first, last))
    return [
        (number, None if len(found) == starts[-1] else torch.tensor(found, device=device))
        for number, found in rows.items()
    ]
