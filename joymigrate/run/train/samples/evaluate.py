"""Scores rows of Parquet with a model over features: in the order of the files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joymigrate.run.train.feed import move_batch
from joymigrate.run.train.samples.open_rows import open_rows
from joymigrate.run.train.samples.readers import start_readers

LEAST = 1024  # rows of a pass; `--batch` may ask for more


def evaluate_rows(
    task: Any, model: Any, data: Sequence[Path], limit: int | None, least: int, device: Any
) -> tuple[list[dict[str, Any]], int]:
    """A row of results for every row of the data, and how many rows were skipped."""
    import torch

    rows = open_rows(data, task.schema, shuffle=False)
    count = rows.order.rows if limit is None else min(limit, rows.order.rows)
    readers = start_readers("threads", 2)
    found: list[dict[str, Any]] = []
    skipped = 0
    size = max(least, LEAST)
    try:
        with torch.no_grad():
            for batch in readers.stream(rows, rows.order.pieces([(0, count)], 0)):
                for at in range(0, batch.read, size):
                    part = batch.part(at, min(batch.read, at + size))
                    skipped += part.read - len(part)
                    if len(part):
                        inputs = move_batch(task.samples_of(part), device.at())
                        found += task.predict(model, inputs)
    finally:
        readers.close()
    for number, row in enumerate(found):
        row["id"] = str(number)
    return found, skipped
