"""TFRecord files of tf.train.Example as rows of samples: numbered, checked, read from any place."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from joymigrate.errors import JoyError
from joymigrate.run.tensorflow.operators.example import read_example
from joymigrate.run.tensorflow.records import read_index, read_records
from joymigrate.run.train.samples.batch import SampleBatch
from joymigrate.run.train.samples.encode import check_columns
from joymigrate.run.train.samples.position import RowGroupPiece
from joymigrate.run.train.samples.readers import SampleRows, encoder_of
from joymigrate.run.train.samples.schema import BAGS, FeatureSchema

GROUP = 4096  # records that are read and shuffled together
LOOKED = 100  # records of a file that are searched for columns: a feature may be missing in some


class ExampleRows(SampleRows):
    """Records of TFRecord files; a group: its file, first record, and the byte it starts at."""

    def read(self, piece: RowGroupPiece) -> SampleBatch:
        """The rows of a piece, encoded."""
        number, first, start = self.groups[piece.group]
        path = self.files[number]
        rows = self.order.rows_of(piece)
        records = list(read_records(Path(path), start, int(rows.max()) + 1))
        table = as_table([records[row] for row in rows], self.schema, path, first + rows)
        return encoder_of(self.schema).encode(table, path, first + rows)

    def empty(self) -> SampleBatch:
        """No rows, with all columns."""
        return encoder_of(self.schema).encode(as_table([], self.schema, "", ()), self.files[0])


def example_rows(
    files: Sequence[Path], schema: FeatureSchema, seed: int = 0, *, shuffle: bool = True
) -> ExampleRows:
    """All records of files; one that is damaged, or lacks a column, is an error."""
    groups, sizes = [], []
    for number, path in enumerate(files):
        starts = read_index(path)
        seen: dict[bytes, Any] = {}
        for at, record in enumerate(read_records(path, count=LOOKED)):
            seen |= parse_record(record, str(path), at)
        if seen:
            check_columns(schema, sorted(name.decode() for name in seen), str(path))
        for first in range(0, len(starts) - 1, GROUP):
            groups.append((number, first, int(starts[first])))
            sizes.append(min(GROUP, len(starts) - 1 - first))
    return ExampleRows(tuple(map(str, files)), tuple(groups), tuple(sizes), schema, seed, shuffle)


def parse_record(record: bytes, path: str, row: int) -> Mapping[bytes, Any]:
    """The features of one record."""
    try:
        return read_example(record)
    except ValueError as error:
        raise JoyError(f"no tf.train.Example: {error}", where=f"{path}, record {row}") from None


def as_table(
    records: Sequence[bytes], schema: FeatureSchema, path: str, rows: Sequence[int]
) -> Any:
    """Records as an Arrow table with the schema's columns."""
    import pyarrow as pa

    examples = [parse_record(data, path, row) for data, row in zip(records, rows, strict=True)]
    kinds = {schema.column(name): each for name, each in schema.features.items()}
    columns = {}
    for name in schema.columns():
        feature = kinds.get(name)
        values = [example.get(name.encode(), ()) for example in examples]
        listed = feature is not None and feature.type in (*BAGS, "sequence")
        texts = feature is not None and (feature.type in ("text", "texts") or feature.text)
        plain = pa.string() if texts else pa.float64() if feature is None else pa.int64()
        columns[name] = column_of(values, listed, kind_of(values, plain), f"{path}, {name}", rows)
    return pa.table(columns)


def kind_of(values: Sequence[Any], expected: Any) -> Any:
    """The Arrow type of a column by its first value; what the schema expects without one."""
    import pyarrow as pa

    first = next((each for each in values if len(each)), None)
    if first is None:
        return expected
    if isinstance(first, list):
        return pa.string()
    return pa.int64() if first.dtype == np.int64 else pa.float32()


def column_of(values: Sequence[Any], listed: bool, kind: Any, where: str, rows: Any) -> Any:
    """One column: a list or one value a row; an absent value is null."""
    import pyarrow as pa

    if not listed:
        wrong = next((at for at, each in enumerate(values) if len(each) > 1), None)
        if wrong is not None:
            raise JoyError(
                f"{len(values[wrong])} values where the schema has one",
                where=f"{where}, record {rows[wrong]}",
                help="give the feature the type ids, texts or sequence",
            )
    flat = list(itertools.chain.from_iterable(values))
    try:
        data = pa.array(flat, pa.binary() if kind == pa.string() else kind).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeDecodeError) as error:
        raise JoyError(f"values of different types, or no UTF-8: {error}", where=where) from None
    sizes = np.array([len(each) for each in values], dtype=np.int64)
    if listed:
        ends = np.concatenate([[0], sizes.cumsum()]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(ends), data)
    places = np.where(sizes > 0, sizes.cumsum() - 1, 0)
    return data.take(pa.array(places, mask=sizes == 0))
