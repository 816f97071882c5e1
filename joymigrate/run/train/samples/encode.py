"""Turns an Arrow table into ids and numbers as the schema says, column by column.

A row that cannot be used is an error with its place, or is left out and counted (`on_error: skip`):
a label that is not a number, an id below 0 or beyond its static table, a missing value without a
default. A column that is missing or of another type is an error always: that is the whole file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.train.samples import hashing
from joymigrate.run.train.samples.batch import Array, JaggedIds, SampleBatch
from joymigrate.run.train.samples.schema import Feature, FeatureSchema

TIMES = ".times"  # behind a sequence's name: when its events were

if TYPE_CHECKING:
    from joymigrate.run.train.samples.histories import HistoryStore


class Encoder:
    """Encodes tables of one schema; `where` of a table names its file in errors."""

    def __init__(self, schema: FeatureSchema, histories: HistoryStore | None = None) -> None:
        self.schema, self.histories = schema, histories
        self.tables = schema.tables()

    def encode(self, table: Any, where: str, row: Array | None = None) -> SampleBatch:
        """The rows of an Arrow table; `row` are their numbers in the file, for errors."""
        check_columns(self.schema, table.column_names, where)
        columns = {name: column_of(table, name) for name in self.schema.columns()}
        pass_ = EncodePass(self, columns, len(table), where, row)
        made = pass_.run()
        if not pass_.fate.any():
            return made
        import pyarrow as pa

        alive = pass_.fate == 0
        inner = self.encode(
            table.filter(pa.array(alive)), where, None if row is None else row[alive]
        )
        return replace(
            inner,
            read=len(table),
            skipped=pass_.skipped(),
            fate=pass_.fate,
            reasons=tuple(pass_.reasons),
        )


def check_columns(schema: FeatureSchema, names: Sequence[str], where: str) -> None:
    """The data have every column that the schema names."""
    for name in schema.columns():
        if name not in names:
            raise JoyError(
                f"the data have no column '{name}'.{did_you_mean(name, names)}",
                where=where,
                help=f"its columns are {', '.join(names)}",
            )


def column_of(table: Any, name: str) -> Any:
    """One column as one Arrow array."""
    import pyarrow as pa

    column = table.column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column


class EncodePass:
    """One pass over one table: gathers what is wrong with which row."""

    def __init__(
        self,
        encoder: Encoder,
        columns: Mapping[str, Any],
        count: int,
        where: str,
        row: Array | None,
    ) -> None:
        self.encoder, self.schema = encoder, encoder.schema
        self.columns, self.count, self.where = columns, count, where
        self.row = np.arange(count) if row is None else row
        self.fate = np.zeros(count, dtype=np.int64)
        self.reasons: list[str] = []
        self.raw: dict[str, Array] = {}  # hashes that crosses are made of
        self.wanted = {part for one in self.schema.features.values() for part in one.of}

    def run(self) -> SampleBatch:
        """Encode every feature; rows that are bad hold anything."""
        labels = np.stack([self.label(name) for name in self.schema.label], axis=1)
        ids: dict[str, Array] = {}
        lists: dict[str, JaggedIds] = {}
        numbers: list[Array] = []
        ordered = sorted(self.schema.features.items(), key=lambda pair: pair[1].type == "cross")
        for name, feature in ordered:
            if feature.is_dense:
                numbers.append(self.number(name, feature).astype(np.float32))
            elif feature.is_single:
                ids[name] = self.single(name, feature)
            else:
                lists[name] = self.listed(name, feature)
                if feature.times is not None:
                    lists[f"{name}{TIMES}"] = self.event_times(feature, lists[name])
        made = np.stack(numbers, axis=1) if numbers else np.zeros((self.count, 0), np.float32)
        return SampleBatch(
            ids=ids,
            lists=lists,
            numbers=made,
            labels=labels.astype(np.float32),
            groups=self.groups(),
            times=self.times(),
            read=self.count,
        )

    # -- columns ------------------------------------------------------------------------------

    def label(self, name: str) -> Array:
        """Numbers; a label that is none is a bad row."""
        values = self.floats(name)
        self.refuse(~np.isfinite(values), f"label '{name}' is not a number", values)
        return values

    def number(self, name: str, feature: Feature) -> Array:
        """Numbers with the default for missing ones, squeezed as the feature says."""
        column = self.schema.column(name)
        values = self.floats(column)
        missing = np.isnan(values)
        if missing.any():
            if feature.default is None:
                self.refuse(missing, f"'{column}' is missing", values)
            values = np.where(missing, feature.default or 0.0, values)
        self.refuse(~np.isfinite(values), f"'{column}' is not finite", values)
        if feature.scale == "log1p":
            values = np.sign(values) * np.log1p(np.abs(values))
        large = np.abs(values) > np.finfo(np.float32).max
        self.refuse(large, f"'{column}' does not fit float32", values)
        return np.where(large, 0.0, values)

    def single(self, name: str, feature: Feature) -> Array:
        """One id per row."""
        rows = self.encoder.tables[self.schema.table_of(name)].rows
        if feature.type == "cross":
            return hashing.fold_hashes(
                hashing.cross_hashes([self.raw[part] for part in feature.of]), rows
            )
        if feature.type == "number":
            places = np.searchsorted(
                np.asarray(feature.buckets), self.number(name, feature), "right"
            )
            return self.remember(name, places.astype(np.int64))
        column = self.schema.column(name)
        array = self.columns[column]
        if feature.type == "text":
            self.check_type(column, is_text(array.type), "text")
            hashes = hashing.of_texts(array)
            self.raw[name] = hashes
            return hashing.fold_hashes(hashes, rows)
        self.check_type(column, is_whole(array.type), "whole numbers")
        if array.null_count:
            if feature.default is None:
                self.refuse(
                    array.is_null().to_numpy(zero_copy_only=False), f"'{column}' is missing"
                )
            array = array.fill_null(int(feature.default or 0))
        return self.remember(
            name, self.ids(column, self.fitting(column, array, feature), feature, rows)
        )

    def fitting(self, column: str, array: Any, feature: Feature) -> Array:
        """Whole numbers as int64; those that don't fit are bad rows."""
        values = array.to_numpy()
        if values.dtype == np.uint64 and not feature.hash:
            self.refuse(values > np.iinfo(np.int64).max, f"'{column}' does not fit int64", values)
        found: Array = values.astype(np.int64)
        return found

    def remember(self, name: str, ids: Array) -> Array:
        """Keep the hashes of ids that a cross needs."""
        if name in self.wanted:
            self.raw[name] = hashing.of_ids(ids)
        return ids

    def ids(
        self, column: str, values: Array, feature: Feature, rows: int | None, lengths: Any = None
    ) -> Array:
        """Ids as the table takes them; `lengths` says which row a value of a list is of."""
        if feature.hash:
            return hashing.fold_hashes(hashing.of_ids(values), rows)
        if len(values) and (values.min() < 0 or (rows is not None and values.max() >= rows)):
            wrong = values < 0
            self.refuse_values(wrong, f"'{column}' has a negative id", values, lengths)
            if rows is not None:
                beyond = values >= rows
                reason = f"'{column}' has an id beyond its table of {rows} rows"
                self.refuse_values(beyond, reason, values, lengths)
        return values

    def listed(self, name: str, feature: Feature) -> JaggedIds:
        """Ids of a bag or a sequence; no list is an empty one."""
        rows = self.encoder.tables[self.schema.table_of(name)].rows
        if feature.history is not None:
            return self.stitched(name, feature, rows)
        column = self.schema.column(name)
        array = self.columns[column]
        import pyarrow as pa

        is_list = pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
        self.check_type(column, is_list, "lists")
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        inner = array.flatten()
        if feature.type == "texts" or feature.text:
            self.check_type(column, is_text(inner.type), "lists of texts")
            values = hashing.fold_hashes(hashing.of_texts(inner), rows)
        else:
            self.check_type(column, is_whole(inner.type), "lists of whole numbers")
            if inner.null_count:
                gone = inner.is_null().to_numpy(zero_copy_only=False)
                self.refuse_values(gone, f"'{column}' has a missing id in a list", gone, lengths)
                inner = inner.fill_null(0)
            numbers = inner.to_numpy().astype(np.int64, copy=False)  # read-only where int64
            values = self.ids(column, numbers, feature, rows, lengths)
        return JaggedIds(values, offsets)

    def stitched(self, name: str, feature: Feature, rows: int | None) -> JaggedIds:
        """The last events of each row's user before the sample, from the history store."""
        assert feature.history is not None
        found = self.stored(feature.history, feature.length)
        values = self.ids(f"history {feature.history}", found.values, feature, rows, found.lengths)
        return JaggedIds(values, found.offsets)

    def stored(self, field: str, length: int) -> JaggedIds:
        """A field of the last events of each row's user, from the history store."""
        known, store = self.schema.histories, self.encoder.histories
        assert known is not None
        assert store is not None
        users = self.whole(known.key)
        if known.count is not None:
            return store.before_count(users, self.whole(known.count), length, field)
        assert known.time is not None
        return store.before_time(users, self.floats(known.time), length, field)

    def event_times(self, feature: Feature, events: JaggedIds) -> JaggedIds:
        """When each event of a sequence was: as many whole seconds as there are events."""
        import pyarrow as pa

        assert feature.times is not None
        if feature.history is not None:
            return self.stored(feature.times, feature.length)
        array = self.columns[feature.times]
        is_list = pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
        fits = is_list and is_whole(array.type.value_type)
        self.check_type(feature.times, fits, "lists of whole numbers")
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        wrong = lengths != events.lengths
        self.refuse(wrong, f"'{feature.times}' has not one time for each event")
        inner = array.flatten().fill_null(0).to_numpy().astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return JaggedIds(inner, offsets)

    def groups(self) -> Array | None:
        """Numbers of the groups; texts are hashed."""
        name = self.schema.group
        if name is None:
            return None
        array = self.columns[name]
        if is_text(array.type):
            return hashing.fold_hashes(hashing.of_texts(array), None)
        return self.whole(name)

    def times(self) -> Array | None:
        """Seconds of the events."""
        return None if self.schema.time is None else self.floats(self.schema.time)

    # -- types and mistakes -------------------------------------------------------------------

    def whole(self, column: str) -> Array:
        """A column of whole numbers without holes."""
        array = self.columns[column]
        self.check_type(column, is_whole(array.type), "whole numbers")
        if array.null_count:
            self.refuse(array.is_null().to_numpy(zero_copy_only=False), f"'{column}' is missing")
            array = array.fill_null(0)
        found: Array = array.to_numpy().astype(np.int64)
        return found

    def floats(self, column: str) -> Array:
        """A column of numbers as float64; missing ones are NaN. Times count in seconds."""
        import pyarrow as pa

        array = self.columns[column]
        if pa.types.is_timestamp(array.type):
            array = array.cast(pa.timestamp("us")).cast(pa.int64())
            found: Array = array.to_numpy(zero_copy_only=False).astype(np.float64) / 1e6
            return found
        kinds = (
            pa.types.is_integer,
            pa.types.is_floating,
            pa.types.is_boolean,
            pa.types.is_decimal,
        )
        fits = any(kind(array.type) for kind in kinds)
        self.check_type(column, fits, "numbers")
        cast: Array = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return cast

    def check_type(self, column: str, fits: bool, wanted: str) -> None:
        """The whole column is of the type that the schema says."""
        if not fits:
            raise JoyError(
                f"column '{column}' holds {self.columns[column].type}, the schema says {wanted}",
                where=self.where,
                help="change the feature's type, or write the data as the other files",
            )

    def refuse_values(self, wrong: Array, reason: str, values: Array, lengths: Any) -> None:
        """Rows with a wrong value among their own."""
        if not wrong.any():
            return
        if lengths is None:
            self.refuse(wrong, reason, values)
            return
        rows = np.zeros(self.count, dtype=bool)
        owner = np.repeat(np.arange(self.count), lengths)
        rows[owner[wrong]] = True
        self.refuse(rows, reason)

    def refuse(self, rows: Array, reason: str, values: Any = None) -> None:
        """Leave rows out and count them, or say where the first one is."""
        rows = rows & (self.fate == 0)
        if not rows.any():
            return
        if self.schema.on_error == "stop":
            at = int(np.argmax(rows))
            shown = f": {values[at]:g}" if values is not None else ""
            raise JoyError(
                f"{reason}{shown}",
                where=f"{self.where} row {int(self.row[at])}",
                help="mend the data, or leave such rows out and count them: on_error: skip",
            )
        if reason not in self.reasons:
            self.reasons.append(reason)
        self.fate[rows] = self.reasons.index(reason) + 1

    def skipped(self) -> dict[str, int]:
        """Rows left out, by reason."""
        counts = np.bincount(self.fate, minlength=len(self.reasons) + 1)[1:].tolist()
        return {reason: n for reason, n in zip(self.reasons, counts, strict=True) if n}


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is text."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_whole(kind: Any) -> bool:
    """Whether an Arrow type is a whole number."""
    import pyarrow as pa

    return bool(pa.types.is_integer(kind))
