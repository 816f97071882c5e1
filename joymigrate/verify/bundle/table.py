"""The records of one step as columns, and their form on disk: under 400 bytes a record."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joymigrate.verify.model import Record
from joymigrate.verify.signs import WIDTH

# `spread`: "" whole, "shard" or "partial" of a sharded tensor, "batch" a part of the batch, each
# with which part it is; the sketches of parts add up to the whole.
COLUMNS = ("module", "call", "kind", "leaf", "dtype", "shape", "spread")


@dataclass(slots=True)
class RecordTable:
    """N records in the order of their arising; `stats` [N, 4] and `sketch` [N, 64] float32."""

    step: int
    module: Sequence[str]
    call: Sequence[int]
    kind: Sequence[str]
    leaf: Sequence[str]
    dtype: Sequence[str]
    shape: Sequence[tuple[int, ...]]
    spread: Sequence[str]
    stats: NDArray[np.float32]
    sketch: NDArray[np.float32]
    places: dict[tuple[str, int, str, str], list[int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.module)

    def __iter__(self) -> Iterator[Record]:
        return (self.record(row) for row in range(len(self)))

    def keys(self) -> list[tuple[str, int, str, str]]:
        """(module, call, kind, leaf) of each record."""
        return list(zip(self.module, self.call, self.kind, self.leaf, strict=True))

    def turns(self) -> list[int]:
        """How often each record's key came before it in the step."""
        seen: Counter[tuple[str, int, str, str]] = Counter()
        found = []
        for key in self.keys():
            found.append(seen[key])
            seen[key] += 1
        return found

    def place(self, key: tuple[str, int, str, str], turn: int = 0) -> int | None:
        """The row of a record, or of its repetition: an output's second gradient in a step."""
        if not self.places:
            for row, known in enumerate(self.keys()):
                self.places.setdefault(known, []).append(row)
        rows = self.places.get(key, [])
        return rows[turn] if turn < len(rows) else None

    def sizes(self) -> NDArray[np.float64]:
        """The norm of each tensor [N], or of its sketch where that is more or all that is known.

        Signed sums may cancel where the tensor does not: the gradient of a last layer's weight adds
        up to zero over the classes, and 64 inputs of three classes are three rows of a sketch.
        """
        with np.errstate(all="ignore"):
            own = np.linalg.norm(self.sketch.astype(np.float64), axis=1)
        norms = self.stats[:, 3].astype(np.float64)  # of a mask's lowest numbers: infinite
        found: NDArray[np.float64] = np.fmax(own, np.where(np.isfinite(norms), norms, 0))
        return np.where(found > 0, found, 1e-30)

    def record(self, row: int) -> Record:
        """One record."""
        high, low, mean, norm = (float(v) for v in self.stats[row])
        return Record(
            self.step,
            self.module[row],
            self.call[row],
            self.kind[row],
            self.leaf[row],
            self.dtype[row],
            tuple(self.shape[row]),
            (high, low, mean, norm),
            self.sketch[row],
            row,
        )


def index_bytes(rows: Sequence[Sequence[Any]]) -> bytes:
    """The index of a table: one list per column, texts by number."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(COLUMNS)
    packed: dict[str, Any] = {"rows": len(rows)}
    for name, column in zip(COLUMNS, columns, strict=True):
        values = [tuple(value) for value in column] if name == "shape" else column
        words = list(dict.fromkeys(values))
        number = {word: i for i, word in enumerate(words)}
        packed[name] = {"words": words, "at": [number[v] for v in values]}
    return zlib.compress(json.dumps(packed, separators=(",", ":")).encode(), 6)


def read_table(step: int, arrays: dict[str, NDArray[Any]]) -> RecordTable:
    """The table of one step's tensors; `KeyError` or `ValueError` where they are none."""
    packed = json.loads(zlib.decompress(arrays["index"].tobytes()))
    rows = int(packed["rows"])
    columns: dict[str, list[Any]] = {}
    for name in COLUMNS:
        words = packed[name]["words"]
        if name == "shape":
            words = [tuple(word) for word in words]
        columns[name] = [words[at] for at in packed[name]["at"]]
    stats, sketch = arrays["stats"], arrays["sketch"]
    if stats.shape != (rows, 4) or sketch.shape != (rows, WIDTH):
        raise ValueError(f"{rows} records but statistics of shape {stats.shape}")
    if any(len(column) != rows for column in columns.values()):
        raise ValueError("columns of unequal length")
    texts = [columns[name] for name in COLUMNS]
    module, call, kind, leaf, dtype, shape, spread = texts
    return RecordTable(step, module, call, kind, leaf, dtype, shape, spread, stats, sketch)
