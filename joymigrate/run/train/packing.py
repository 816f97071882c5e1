"""Puts token documents into rows of at most `length` tokens; documents in a row stay apart.

A row has `tokens`, `targets` (1 where the token is predicted) and `positions`, which start again
at 0 with every document: transformers builds the block-diagonal attention mask from them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from joymigrate.run.train.columns import Array
from joymigrate.run.train.tasks._language import document
from joymigrate.run.train.tokens import TokenCache


@dataclass(frozen=True, slots=True)
class Documents:
    """One document per row, cut at `length`: no packing."""

    cache: TokenCache
    length: int

    def __len__(self) -> int:
        return len(self.cache)

    def __getitem__(self, index: int) -> dict[str, Array]:
        return join_documents(self.cache, index, index + 1, self.length)

    def weight(self, index: int) -> float:
        """Number of targets."""
        return self.cache.weight(index)


class PackedDocuments:
    """Whole documents put into rows in their order, as many as fit."""

    def __init__(self, cache: TokenCache, length: int) -> None:
        self.cache, self.length = cache, length
        self.starts = cached_rows(cache, length)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> dict[str, Array]:
        first, last = int(self.starts[index]), int(self.starts[index + 1])
        return join_documents(self.cache, first, last, self.length)

    def weight(self, index: int) -> float:
        """Number of targets."""
        first, last = int(self.starts[index]), int(self.starts[index + 1])
        return float(self.cache.columns["weight"].slice(first, last).sum())


class PackedStream:
    """All documents as one stream, cut into rows of equal length; the last row is shorter."""

    def __init__(self, cache: TokenCache, length: int) -> None:
        self.cache, self.length = cache, length
        self.column = cache.columns["tokens"]
        self.total = int(self.column.ends[-1])

    def __len__(self) -> int:
        rows = -(-self.total // self.length)
        alone = self.total % self.length == 1 and rows > 1  # nothing to predict in one token
        return rows - 1 if alone else rows

    def __getitem__(self, index: int) -> dict[str, Array]:
        start, stop = self.span(index)
        tokens = self.column.slice(start, stop).astype(np.int64)
        borders = self.borders(start, stop)
        targets = np.ones(len(tokens), dtype=bool)
        targets[0] = False
        targets[borders] = False  # no document is predicted from the one before
        return {"tokens": tokens, "targets": targets, "positions": positions(len(tokens), borders)}

    def span(self, index: int) -> tuple[int, int]:
        """Where a row lies in the stream."""
        return index * self.length, min((index + 1) * self.length, self.total)

    def borders(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Where documents begin inside a row, counted from its start."""
        ends = self.column.ends
        first, last = np.searchsorted(ends, [start + 1, stop], side="left")
        inside: npt.NDArray[np.int64] = np.asarray(ends[first:last], dtype=np.int64) - start
        return np.unique(inside)

    def weight(self, index: int) -> float:
        """Number of targets."""
        start, stop = self.span(index)
        return float(stop - start - 1 - len(self.borders(start, stop)))


def positions(length: int, borders: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0, 1, 2 …, starting again at every border."""
    counted = np.arange(length, dtype=np.int64)
    begins = np.zeros(length, dtype=np.int64)
    begins[borders] = borders
    return counted - np.maximum.accumulate(begins)


def join_documents(cache: TokenCache, first: int, last: int, length: int) -> dict[str, Array]:
    """Documents `first … last - 1` in one row. `spans` of a document are its target ranges."""
    samples = [cache[index] for index in range(first, last)]
    made = [document(sample["tokens"][:length], sample["spans"]) for sample in samples]
    return {name: np.concatenate([one[name] for one in made]) for name in made[0]}


def cached_rows(cache: TokenCache, length: int) -> npt.NDArray[np.int64]:
    """First document of every row, and the end; kept beside the cache for the next start."""
    path: Path = cache.folder / f"rows-{length}.npy"
    try:
        found: npt.NDArray[np.int64] = np.load(path)
        if found[-1] == len(cache):
            return found
    except (OSError, ValueError, IndexError, EOFError):
        pass
    made = fill(np.diff(cache.columns["tokens"].ends), length)
    temporary = path.with_name(f"{path.stem}.{os.getpid()}.npy")
    np.save(temporary, made)
    temporary.replace(path)
    return made


def fill(lengths: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    """Rows in the documents' order: a row ends where the next document would not fit."""
    ends = np.concatenate([[0], np.cumsum(np.minimum(lengths, length))])
    starts = [0]
    while starts[-1] < len(lengths):
        at = starts[-1]
        reach = int(np.searchsorted(ends, ends[at] + length, side="right")) - 1
        starts.append(max(reach, at + 1))
    return np.array(starts, dtype=np.int64)
