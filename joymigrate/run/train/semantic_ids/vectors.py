"""Reads the vectors of items: a table that a run exported, or a Parquet file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from joymigrate.errors import JoyError, did_you_mean


def read_vectors(path: Path, key: str = "item_id", column: str = "vector") -> tuple[Tensor, Tensor]:
    """Items [N] and their vectors [N, C]; each item once."""
    if not path.is_file():
        raise JoyError("no such file of vectors", where=str(path))
    if path.suffix == ".safetensors":
        items, rows = of_table(path)
    else:
        items, rows = of_parquet(path, key, column)
    if len(torch.unique(items)) != len(items):
        raise JoyError("an item occurs twice among the vectors", where=str(path))
    if not len(items):
        raise JoyError("there are no vectors", where=str(path))
    return items, rows


def of_table(path: Path) -> tuple[Tensor, Tensor]:
    """`ids` and `rows` of an exported table."""
    from safetensors.torch import load_file

    try:
        found = load_file(path)
    except Exception as error:  # safetensors' own error has no public base
        raise JoyError(f"cannot read the table: {error}", where=str(path)) from None
    if not {"ids", "rows"} <= set(found):
        raise JoyError(
            "the file holds no ids with rows",
            where=str(path),
            help="train writes them: RUN/model/table.NAME.safetensors",
        )
    return found["ids"], found["rows"]


def of_parquet(path: Path, key: str, column: str) -> tuple[Tensor, Tensor]:
    """Two columns; every vector of one length."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    try:
        names = parquet.read_schema(path).names
        for name in (key, column):
            if name not in names:
                raise JoyError(f"there is no column '{name}'.{did_you_mean(name, names)}",
                               where=str(path))  # fmt: skip
        table = parquet.read_table(path, columns=[key, column])
    except (OSError, pa.ArrowException) as error:
        raise JoyError(f"cannot read vectors: {error}", where=str(path)) from None
    lists = table[column].combine_chunks()
    kind = lists.type
    known = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(fits(kind) for fits in known):
        raise JoyError(f"column '{column}' holds {kind}, vectors are lists", where=str(path))
    if not pa.types.is_integer(table[key].type) or table[key].null_count:
        raise JoyError(f"column '{key}' holds no whole numbers without holes", where=str(path))
    lengths = {len(one) if one is not None else 0 for one in lists.to_pylist()}
    if len(lengths) != 1 or 0 in lengths:
        raise JoyError(f"vectors differ in length: {sorted(lengths)}", where=str(path))
    flat = lists.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    items = table[key].to_numpy().astype(np.int64)
    return torch.from_numpy(items), torch.from_numpy(flat.reshape(len(items), -1))
