"""Reads the records of JSONL, Parquet and text files, in order, from any record on."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from joymigrate.errors import JoyError
from joymigrate.extras import need
from joymigrate.run.train import digests

Item = TypeVar("Item")
BY_RECORD = "records:"  # before a digest of records
SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
}


@dataclass(slots=True)
class Fate:
    """What training loses of a record."""

    cut: int = 0  # tokens beyond data.max_length
    dropped: str = ""  # why the record gives no sample
    notes: set[str] = field(default_factory=set)  # what a user might not expect


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """One record, where it stands (`data.jsonl:17`), which keys were read, and what is lost.

    A task asks for keys by `get`, `require` or `text`: what it never asks for is `unused`.
    """

    value: Mapping[str, Any]
    where: str
    used: set[str] = field(default_factory=set, compare=False)
    fate: Fate = field(default_factory=Fate, compare=False)

    def get(self, *names: str) -> Any:
        """The value of the first of `names` that the record has, or None."""
        for name in names:
            if self.value.get(name) is not None:
                self.used.add(name)
                return self.value[name]
        return None

    def require(self, *names: str) -> Any:
        """The first of `names` that the record has; `JoyError` names what it has instead."""
        found = self.get(*names)
        if found is None:
            raise JoyError(
                f"the record has no '{names[0]}'",
                where=self.where,
                help=f"its keys are {', '.join(map(str, self.value)) or 'none'}",
            )
        return found

    def text(self, *names: str) -> str:
        """The text under the first of `names` that the record has."""
        name = next((name for name in names if self.value.get(name) is not None), names[0])
        return as_text(self.require(*names), name, self)

    def listed(self, name: str, as_item: Callable[[Any, str, TrainingRecord], Item]) -> list[Item]:
        """The list under `name`, each of it by `as_text` or `as_number`."""
        value = self.require(name)
        if not isinstance(value, list):
            raise JoyError(f"'{name}' is {kind_of_value(value)}, expected a list", where=self.where)
        return [as_item(one, name, self) for one in value]

    def with_value(self, value: Mapping[str, Any]) -> TrainingRecord:
        """Another form of this record, whose own keys are noted apart."""
        return TrainingRecord(value, self.where, fate=self.fate)

    @property
    def unused(self) -> list[str]:
        """Keys with a value that nobody has asked for."""
        return [
            str(key)
            for key, value in self.value.items()
            if value is not None and key not in self.used
        ]


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """A place between two records: file number, byte offset (or row of a Parquet file), line."""

    file: int = 0
    offset: int = 0
    line: int = 0


@dataclass(frozen=True, slots=True)
class Portion:
    """Bytes `begin … end - 1` of a data file; without `end` all that follow.

    Of a Parquet file, a JSON array or a compressed file (`counts_records`) they are records.
    """

    path: Path
    begin: int = 0
    end: int | None = None


def kind_of(path: Path, format: str) -> str:
    """jsonl, parquet or text."""
    if format != "auto":
        return format
    name = path.with_suffix("") if path.suffix == ".gz" else path
    found = SUFFIXES.get(name.suffix.lower())
    if found is None:
        raise JoyError(
            f"unknown kind of data file '{name.suffix}'",
            where=str(path),
            help=f"known: {', '.join(SUFFIXES)}, lines also with .gz; or set data.format",
        )
    return found


def check(files: Sequence[Path], format: str = "auto", setting: str = "data.train") -> None:
    """Every file is there and of a known kind."""
    check_there(files, setting)
    for path in files:
        kind_of(path, format)


def check_there(files: Sequence[Path], setting: str) -> None:
    """Every file is there."""
    for path in files:
        if not path.is_file():
            raise JoyError("no such data file", where=str(path), help=f"check {setting}")


def read(
    files: Sequence[Path | Portion], format: str = "auto", start: RecordPosition | None = None
) -> Iterator[tuple[TrainingRecord, RecordPosition]]:
    """Records from `start` on, each with the mark behind it. Files may be portions."""
    at = start or RecordPosition()
    for number in range(at.file, len(files)):
        file = files[number]
        part = file if isinstance(file, Portion) else Portion(file)
        first = at if number == at.file and start is not None else begin_of(part, number, format)
        kind = kind_of(part.path, format)
        if kind == "parquet":
            yield from rows(part.path, first, part.end)
        elif counts_records(part.path, format):
            found = read_packed if part.path.suffix == ".gz" else read_items
            yield from count_marks(found(part.path, kind), first, part.end)
        else:
            yield from lines(part.path, first, json_lines=kind == "jsonl", end=part.end)


def counts_records(path: Path, format: str) -> bool:
    """Whether a portion of a file counts records, not bytes."""
    kind = kind_of(path, format)
    lines_of_text = kind == "text" or (kind == "jsonl" and not begins_array(path))
    return path.suffix == ".gz" or not lines_of_text


def size_of(path: Path, format: str, limit: int | None = None) -> int:
    """The end of a file, or of its first `limit` records, as a portion has it."""
    if counts_records(path, format):
        parquet = kind_of(path, format) == "parquet"
        rows = range(open_parquet(path).metadata.num_rows) if parquet else read([path], format)
        return sum(1 for _ in itertools.islice(rows, limit))
    if limit is not None:
        found = lines(path, RecordPosition(), json_lines=kind_of(path, format) == "jsonl")
        ends = [mark.offset for _, mark in itertools.islice(found, limit)]
        if len(ends) == limit:
            return ends[-1]
    return path.stat().st_size


def digest_of(part: Portion, format: str, memory: Path | None = None) -> str:
    """sha256 of a portion: of its bytes, or of its records whatever the file does around them.

    Records are slow to read: the folder `memory` keeps what is known of them.
    """
    if not counts_records(part.path, format):
        return digests.of_file(part.path, part.begin, part.end)

    def of_records() -> str:
        made = hashlib.sha256()
        for record, _ in read([part], format):
            text = json.dumps(record.value, sort_keys=True, default=str)
            made.update(text.encode() + b"\n")
        return f"{BY_RECORD}{made.hexdigest()}"

    name = f"{BY_RECORD}{part.begin}-{part.end}:{kind_of(part.path, format)}:"
    return digests.remember(part.path, of_records, memory, name)


def begin_of(part: Portion, number: int, format: str) -> RecordPosition:
    """Where a portion begins, with the lines before it."""
    if not part.begin or counts_records(part.path, format):
        return RecordPosition(number, part.begin, part.begin)
    with part.path.open("rb") as file:
        before, left = 0, part.begin
        while left and (piece := file.read(min(1 << 20, left))):
            before += piece.count(b"\n")
            left -= len(piece)
    return RecordPosition(number, part.begin, before)


def begins_array(path: Path) -> bool:
    """Whether a JSON file is one array of records, as instruction data often are."""
    with path.open("rb") as file:
        return file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")


def read_array(path: Path) -> list[Any]:
    """A JSON array, which is read whole."""
    try:
        found: list[Any] = read_json(path.read_text("utf-8-sig"))
    except ValueError as error:
        raise JoyError(f"not valid JSON: {error}", where=str(path)) from None
    return found


def count_marks(
    found: Iterable[TrainingRecord], at: RecordPosition, end: int | None
) -> Iterator[tuple[TrainingRecord, RecordPosition]]:
    """Records up to `end` behind those that `at.offset` counts, each with the mark behind it."""
    for place, record in enumerate(itertools.islice(found, end), 1):
        if place > at.offset:
            yield record, RecordPosition(at.file, place, place)


def read_items(path: Path, kind: str) -> Iterator[TrainingRecord]:
    """The records of one JSON array."""
    for place, value in enumerate(read_array(path), 1):
        where = f"{path} record {place}"
        if not isinstance(value, dict):
            raise JoyError(f"expected an object, got {type(value).__name__}", where=where)
        yield TrainingRecord(value, where)


def read_packed(path: Path, kind: str) -> Iterator[TrainingRecord]:
    """The lines of a file that is compressed by gzip."""
    try:
        for record, _ in lines(path, RecordPosition(), json_lines=kind == "jsonl"):
            yield record
    except (OSError, EOFError, zlib.error) as error:
        said = getattr(error, "strerror", None) or error
        raise JoyError(f"cannot read: {said}", where=str(path)) from None


def lines(
    path: Path, at: RecordPosition, *, json_lines: bool, end: int | None = None
) -> Iterator[tuple[TrainingRecord, RecordPosition]]:
    """One record per line that is not empty, of the lines that begin before `end`."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        file.seek(at.offset)
        offset, number = at.offset, at.line
        for raw in file:
            if end is not None and offset >= end:
                return
            offset, number = offset + len(raw), number + 1
            if not raw.strip():
                continue
            where = f"{path}:{number}"
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                value = read_json(text) if json_lines else {"text": text.rstrip("\r\n")}
            except ValueError as error:
                what = "not valid JSON" if json_lines else "not valid UTF-8"
                raise JoyError(
                    f"{what}: {error}", where=where, help="one JSON object per line"
                ) from None
            if not isinstance(value, dict):
                raise JoyError(f"expected an object, got {type(value).__name__}", where=where)
            yield TrainingRecord(value, where), RecordPosition(at.file, offset, number)


def read_json(text: str) -> Any:
    """JSON without a key that stands twice and without half of a surrogate pair: `ValueError`."""
    value = json.loads(text, object_pairs_hook=object_of)
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise ValueError(f"{half!r} is half of a surrogate pair, which is no text") from None
    return value


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ."""
    made = dict(pairs)
    if len(made) < len(pairs):
        ((double, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key '{double}' stands twice")
    return made


def open_parquet(path: Path) -> Any:
    """A Parquet file; `JoyError` for one of another kind."""
    need("train", "pyarrow", what="reading Parquet")
    from pyarrow import ArrowInvalid, parquet

    try:
        return parquet.ParquetFile(path)
    except (ArrowInvalid, OSError) as error:
        raise JoyError(f"not a Parquet file: {error}", where=str(path)) from None


def rows(
    path: Path, at: RecordPosition, end: int | None = None
) -> Iterator[tuple[TrainingRecord, RecordPosition]]:
    """One record per row of a Parquet file up to row `end`, read batch by batch."""
    row = 0
    for batch in open_parquet(path).iter_batches(batch_size=1024):
        if row + batch.num_rows <= at.offset:
            row += batch.num_rows
            continue
        for value in batch.to_pylist():
            row += 1
            if end is not None and row > end:
                return
            if row > at.offset:
                yield TrainingRecord(value, f"{path} row {row}"), RecordPosition(at.file, row, row)


def as_text(value: Any, name: str, record: TrainingRecord) -> str:
    """A text, or a number as it is written; anything else is no text and is refused."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise JoyError(
        f"'{name}' is {kind_of_value(value)}, expected a text",
        where=record.where,
        help="nothing but texts and numbers can be learned as text",
    )


def as_number(value: Any, name: str, record: TrainingRecord) -> float:
    """A finite number, also one that is written as a text; anything else is refused."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise JoyError(f"'{name}' is {value!r}, expected a number", where=record.where)
    return found


def is_blank(text: str, record: TrainingRecord) -> bool:
    """Whether there is no word in what is to be learned; the record's fate says so."""
    if not text.strip():
        record.fate.dropped = "a text without a word"
    return not text.strip()


def kind_of_value(value: Any) -> str:
    """What a JSON value is, in words."""
    kinds = {type(None): "empty", bool: "true or false", list: "a list", dict: "an object"}
    return {**kinds, str: "a text"}.get(type(value), type(value).__name__)
