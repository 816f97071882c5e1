"""The rows of data files, by what kind of files they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.run.train.records import check_there
from joymigrate.run.train.samples.examples import example_rows
from joymigrate.run.train.samples.readers import SampleRows, parquet_rows
from joymigrate.run.train.samples.schema import FeatureSchema


def is_records(path: Path) -> bool:
    """Whether a file's name says TFRecord: part-0.tfrecord, day.tfrecords-00001-of-00008, …"""
    return ".tfrecord" in path.name or ".tfrec" in path.name


def open_rows(
    files: Sequence[Path], schema: FeatureSchema, seed: int = 0, *, shuffle: bool = True
) -> SampleRows:
    """All rows of files: Parquet, or TFRecord files of tf.train.Example.

    Raises `JoyError` for a file that is not there, for two kinds of files, and for no row in all.
    """
    check_there(files, "data.train and data.eval")
    records = [is_records(path) for path in files]
    if any(records) and not all(records):
        raise JoyError(
            "Parquet and TFRecord files in one list",
            where=", ".join(map(str, files)),
            help="name files of one kind in data.train",
        )
    opened = example_rows if records and records[0] else parquet_rows
    rows = opened(files, schema, seed, shuffle=shuffle)
    if not rows.sizes:
        raise JoyError(
            "no data file has a row",
            where=", ".join(map(str, files)),
            help="name files with rows in data.train and data.eval",
        )
    return rows
