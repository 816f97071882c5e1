"""The schema of features: which columns a model reads, their types, tables, hashes and histories.

label: click
group: user_id
features:
  user_id: {type: id}                               # a dynamic table: ids are unbounded
  item_id: {type: id, rows: 100000}                 # a static table: ids are 0 … 99999
  brand:   {type: text, rows: 5000}                 # hashed into 5000 rows
  price:   {type: number, scale: log1p, default: 0}
  hour:    {type: number, buckets: [6, 12, 18]}     # 4 rows
  brand_x_hour: {type: cross, of: [brand, hour], rows: 20000}
  clicked: {type: sequence, table: item_id, history: item, length: 50}
histories: {store: histories, key: user_id, count: history_count}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.schema import document, load_file, read, setting

TYPES = ("id", "text", "number", "ids", "texts", "sequence", "cross")
SINGLE = ("id", "text", "cross")  # one id per row
BAGS = ("ids", "texts")


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature: what its column holds, and how it becomes ids or a number."""

    SHORT = "type"

    type: str = setting(help="what the column holds", choices=TYPES)
    column: str | None = setting(None, "the column (default: the feature's name)")
    table: str | None = setting(None, "the table of its rows (default: one of its own)")
    rows: int | None = setting(None, "rows of a static table; none: a dynamic table", least=1)
    dim: int | None = setting(None, "columns of the table (default: the schema's dim)", least=1)
    hash: bool = setting(False, "hash whole numbers too (texts and crosses always are)")
    of: tuple[str, ...] = setting((), "cross: the features that are combined")
    buckets: tuple[float, ...] = setting((), "number: borders; the number becomes an id")
    scale: str = setting("none", "number: how it is squeezed", choices=("none", "log1p"))
    default: float | None = setting(None, "instead of a missing value (default: an error)")
    length: int = setting(50, "sequence: the last so many events", least=1)
    history: str | None = setting(None, "sequence: the field of the history store it comes from")
    text: bool = setting(False, "sequence: the column holds texts")
    times: str | None = setting(
        None, "sequence: the column (with history: the field) of the events' times, whole seconds"
    )

    @property
    def is_dense(self) -> bool:
        """Whether the feature is a number for the dense part."""
        return self.type == "number" and not self.buckets

    @property
    def is_single(self) -> bool:
        """Whether every row has one id."""
        return self.type in SINGLE or (self.type == "number" and bool(self.buckets))


@dataclass(frozen=True, slots=True)
class Histories:
    """Long histories that are stored once per user, and stitched in when a row is read."""

    store: str = setting(help="a folder (LMDB), or redis://HOST:PORT/DB#PREFIX")
    key: str = setting(help="the column with the user's number")
    count: str | None = setting(None, "the column with the number of events before the sample")
    time: str | None = setting(None, "else: the column with the sample's time")


@document("features", "The features of a recommendation model: what the sample engine reads.")
@dataclass(frozen=True, slots=True)
class FeatureSchema:
    """All features of a model, its labels, and where histories lie."""

    features: Mapping[str, Feature] = setting(help="features by name")
    label: tuple[str, ...] = setting(help="the column of the label, or several", single=True)
    group: str | None = setting(None, "the column that GAUC and NDCG are grouped by")
    time: str | None = setting(None, "the column with the event's time in seconds (freshness)")
    dim: int = setting(16, "columns of a table that names none", least=1)
    histories: Histories | None = setting(None, "where sequences with `history` lie")
    on_error: str = setting(
        "stop", "a row that cannot be read: stop, or skip and count", choices=("stop", "skip")
    )

    def __post_init__(self) -> None:
        check(self)

    def column(self, name: str) -> str:
        """The column of a feature."""
        return self.features[name].column or name

    def columns(self) -> list[str]:
        """Every column that a row needs, each once."""
        wanted: list[str | None] = [*self.label, self.group, self.time]
        for name, feature in self.features.items():
            if feature.type != "cross" and feature.history is None:
                wanted += [self.column(name), feature.times]
        if self.histories is not None:
            wanted += [self.histories.key, self.histories.count, self.histories.time]
        return list(dict.fromkeys(name for name in wanted if name is not None))

    def table_of(self, name: str) -> str:
        """The table that a feature looks up in."""
        return self.features[name].table or name

    def tables(self) -> dict[str, TableSize]:
        """Every table by its name."""
        known: dict[str, TableSize] = {}
        for name, feature in self.features.items():
            if feature.is_dense:
                continue
            table = self.table_of(name)
            rows = len(feature.buckets) + 1 if feature.buckets else feature.rows
            mine = TableSize(rows, feature.dim)
            known[table] = mine if table not in known else join_tables(known[table], mine, name)
        return {name: dataclasses.replace(one, dim=one.dim or self.dim) for name, one in
                known.items()}  # fmt: skip

    def dense(self) -> list[str]:
        """The numbers, in order."""
        return [name for name, feature in self.features.items() if feature.is_dense]

    def singles(self) -> list[str]:
        """Features with one id per row, in order."""
        return [name for name, feature in self.features.items() if feature.is_single]

    def bags(self) -> list[str]:
        """Features with any number of ids per row, without an order."""
        return [name for name, feature in self.features.items() if feature.type in BAGS]

    def sequences(self) -> list[str]:
        """Features with ids in the order of time."""
        return [name for name, feature in self.features.items() if feature.type == "sequence"]

    def document(self) -> dict[str, Any]:
        """As plain data, to be read again."""
        raw = dataclasses.asdict(self)
        raw["features"] = {name: dataclasses.asdict(one) for name, one in self.features.items()}
        return raw


@dataclass(frozen=True, slots=True)
class TableSize:
    """Rows (None: dynamic) and columns of a table."""

    rows: int | None
    dim: int | None

    @property
    def width(self) -> int:
        """Columns."""
        assert self.dim is not None
        return self.dim


def join_tables(one: TableSize, other: TableSize, name: str) -> TableSize:
    """A table that two features share."""
    for key in ("rows", "dim"):
        first, second = getattr(one, key), getattr(other, key)
        if first is not None and second is not None and first != second:
            raise JoyError(
                f"'{name}' shares a table of {first} {key}, and asks for {second}",
                where=f"features.{name}.{key}",
                help="features of one table agree; leave it out here",
            )
    return TableSize(one.rows or other.rows, one.dim or other.dim)


def check(schema: FeatureSchema) -> None:
    """What one key cannot say about another."""
    if not schema.features:
        raise JoyError("a schema needs a feature", where="features")
    twice = [name for name in schema.label if schema.label.count(name) > 1]
    if twice:
        raise JoyError(f"the label '{twice[0]}' stands twice", where="label")
    for name, feature in schema.features.items():
        check_feature(schema, name, feature)
    known = schema.histories
    if known is not None and (known.count is None) == (known.time is None):
        raise JoyError(
            "histories need either count or time",
            where="histories",
            help="count: the number of events before the sample; time: when the sample was",
        )
    schema.tables()


def check_feature(schema: FeatureSchema, name: str, feature: Feature) -> None:
    """One feature's keys go with its type."""
    where = f"features.{name}"
    if feature.type != "cross" and feature.history is None:
        columns = {schema.column(name), feature.times}
        if told := columns & set(schema.label):
            raise JoyError(
                f"the label '{told.pop()}' is a feature too: the model would read the answer",
                where=where,
                help="leave the feature out, or name another label",
            )
    if feature.type == "cross":
        for part in feature.of:
            if part not in schema.features:
                raise JoyError(
                    f"unknown feature '{part}'.{did_you_mean(part, schema.features)}",
                    where=f"{where}.of",
                )
            if part == name or not schema.features[part].is_single:
                raise JoyError(f"'{part}' has not one id per row", where=f"{where}.of")
            if schema.features[part].type == "cross":
                raise JoyError(f"'{part}' is a cross itself", where=f"{where}.of")
        if len(feature.of) < 2:
            raise JoyError("a cross needs two features or more", where=f"{where}.of")
    elif feature.of:
        raise JoyError(f"'of' goes with type cross, not {feature.type}", where=f"{where}.of")
    if feature.buckets and (
        feature.type != "number" or list(feature.buckets) != sorted(set(feature.buckets))
    ):
        raise JoyError("buckets are rising borders of a number", where=f"{where}.buckets")
    if feature.history is not None and (feature.type != "sequence" or schema.histories is None):
        raise JoyError(
            "history goes with type sequence, and needs `histories`", where=f"{where}.history"
        )
    if feature.times is not None and feature.type != "sequence":
        raise JoyError("times goes with type sequence", where=f"{where}.times")
    if feature.text and feature.type != "sequence":
        raise JoyError("text goes with type sequence", where=f"{where}.text")


def load(path: Path) -> FeatureSchema:
    """The schema of a file; its history store counts from the file's folder."""
    raw, source = load_file(path, "features", "docs/how-to/samples.md shows one")
    if not isinstance(raw, dict):
        raise JoyError("the schema has no keys", where=str(path))
    schema = read(FeatureSchema, raw, source)
    known = schema.histories
    if known is None or "://" in known.store:
        return schema
    place = str((path.resolve().parent / known.store).resolve())
    return dataclasses.replace(schema, histories=dataclasses.replace(known, store=place))
