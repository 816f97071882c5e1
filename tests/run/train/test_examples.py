"""TFRecord files in the sample engine: the same batches as from Parquet, checked and resumable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joymigrate.errors import JoyError
from joymigrate.run.tensorflow.records import write_records
from joymigrate.run.train.samples import examples, readers
from joymigrate.run.train.samples.open_rows import open_rows
from joymigrate.run.train.samples.schema import FeatureSchema
from joymigrate.schema import read

pytest.importorskip("torch")
pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

from joymigrate.run.tensorflow.operators.example import write_example  # noqa: E402

ROWS = 500


def schema_of(**changes: Any) -> FeatureSchema:
    raw = {
        "label": "click",
        "features": {
            "item": {"type": "id", "rows": 1000},
            "brand": {"type": "text", "rows": 50},
            "price": {"type": "number", "default": 7.0},
            "tags": {"type": "texts", "rows": 30},
            "seen": {"type": "sequence", "rows": 1000, "length": 5},
        },
        **changes,
    }
    return read(FeatureSchema, raw, "features")


def made() -> list[dict[str, Any]]:
    draws = np.random.default_rng(0)
    return [
        {
            "click": [float(row % 3 == 0)],
            "item": [row],
            "brand": [f"b{row % 7}é"],
            "price": [] if row % 10 == 0 else [row / 2],
            "tags": [f"t{each}" for each in range(row % 4)],
            "seen": draws.integers(0, 1000, row % 8).tolist(),
        }
        for row in range(ROWS)
    ]


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.setattr(examples, "GROUP", 64)
    rows = made()
    records, table = tmp_path / "a.tfrecord", tmp_path / "a.parquet"
    write_records(records, (write_example({k: v for k, v in row.items() if v}) for row in rows))
    lists = ("tags", "seen")
    columns = {
        key: [row[key] if key in lists else (row[key] or [None])[0] for row in rows]
        for key in rows[0]
    }
    types = {"seen": pa.list_(pa.int64()), "tags": pa.list_(pa.string()), "price": pa.float32()}
    arrays = {key: pa.array(value, types.get(key)) for key, value in columns.items()}
    parquet.write_table(pa.table(arrays), table, row_group_size=64)
    return records, table


@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_are_those_of_parquet(both: tuple[Path, Path], shuffle: bool) -> None:
    mine, theirs = (open_rows([path], schema_of(), seed=5, shuffle=shuffle) for path in both)
    assert mine.order.sizes.tolist() == theirs.order.sizes.tolist()
    pieces = mine.order.pieces([(0, ROWS)], 1)
    for a, b in zip(map(mine.read, pieces), map(theirs.read, pieces), strict=True):
        np.testing.assert_array_equal(a.labels, b.labels)
        np.testing.assert_array_equal(a.numbers, b.numbers)
        for key in b.ids:
            np.testing.assert_array_equal(a.ids[key], b.ids[key])
        for key in b.lists:
            np.testing.assert_array_equal(a.lists[key].values, b.lists[key].values)
    assert len(mine.empty()) == 0


@pytest.mark.dear
@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_cut_anywhere_reads_every_record_once(both: tuple[Path, Path], engine: str) -> None:
    rows = open_rows([both[0]], schema_of(), seed=2)
    reading = readers.start_readers(engine, 2)
    seen: list[int] = []
    for share in ([(0, 137)], [(137, 300)], [(300, ROWS)]):  # three starts of one epoch
        for batch in reading.stream(rows, rows.order.pieces(share, 0)):
            seen += batch.ids["item"].tolist()
    reading.close()
    assert sorted(seen) == list(range(ROWS))


def test_a_damaged_record_stops_with_its_place(both: tuple[Path, Path]) -> None:
    data = bytearray(both[0].read_bytes())
    data[-10] ^= 1
    both[0].write_bytes(data)
    rows = open_rows([both[0]], schema_of(), shuffle=False)
    with pytest.raises(JoyError, match="CRC of the data is wrong") as error:
        rows.read(rows.order.pieces([(ROWS - 1, ROWS)], 0)[0])
    assert "byte" in str(error.value.where)


def test_mistakes_are_said(both: tuple[Path, Path]) -> None:
    with pytest.raises(JoyError, match="no column 'clock'"):
        open_rows([both[0]], schema_of(label="clock"))
    with pytest.raises(JoyError, match="Parquet and TFRecord files in one list"):
        open_rows(list(both), schema_of())
    single = {"tags": {"type": "text", "rows": 9}}
    rows = open_rows([both[0]], schema_of(features=single), shuffle=False)
    with pytest.raises(JoyError, match="values where the schema has one"):
        rows.read(rows.order.pieces([(0, 10)], 0)[0])
    write_records(both[0], [b"\xff\xff"])
    with pytest.raises(JoyError, match=r"no tf\.train\.Example"):
        open_rows([both[0]], schema_of())
