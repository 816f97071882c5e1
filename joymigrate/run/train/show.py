"""What training takes of its records: which tokens are read, which are learned, what is lost.

Records go through the task's own `encode`, as they do when the token cache is built; nothing is
written. Rows are shown before packing.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.train import records
from joymigrate.run.train.assemble import task_of
from joymigrate.run.train.build import Losses
from joymigrate.run.train.columns import Array, Sample
from joymigrate.run.train.data_state import whole
from joymigrate.run.train.job import Job, data_files
from joymigrate.run.train.tasks import Task

SHORT = 16  # values that are shown as they are


@dataclass(frozen=True, slots=True)
class ShownRow:
    """One row of tokens: their texts, and which are learned."""

    name: str  # of several rows in a sample: chosen, rejected
    tokens: tuple[str, ...]
    learned: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """One record's samples, and what is lost of it. `refused` says why training would stop."""

    number: int  # from 1, over all files
    where: str
    rows: tuple[ShownRow, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)  # what a sample has beside tokens
    cut: int = 0
    dropped: str = ""
    unused: tuple[str, ...] = ()
    refused: str = ""


@dataclass(frozen=True, slots=True)
class ShownData:
    """The records that were asked for, and what happened to all that were counted."""

    task: str
    records: tuple[ShownRecord, ...]
    counted: int
    samples: int
    lost: Losses
    refused: dict[str, int]  # records, by what is wrong with them
    whole: bool  # whether the data end there


def show(job: Job, numbers: Sequence[int], first: int, most: int) -> ShownData:
    """The `first` records and those of `numbers` (from 1), counting over `most` records.

    Raises `JoyError` for a job whose data are rows of features, and for numbers beyond the data.
    """
    if job.data.schema is not None:
        raise JoyError(
            "the data are rows of features, which are not tokens",
            where="data.schema",
            help="joymigrate train samples shows them",
        )
    task = task_of(job)
    files = data_files(job)
    records.check(files, job.data.format)
    parts = whole(files, job.data.format, job.data.limit)
    wanted = {*numbers, *range(1, first + 1)}
    last = max([most, *numbers])
    shown, lost, refused, samples, count = [], Losses(), dict[str, int](), 0, 0
    for count, (record, _) in enumerate(records.read(parts, job.data.format), 1):
        if count > last:
            count -= 1
            break
        try:
            made = task.encode(record)
        except JoyError as error:
            refused[error.what] = refused.get(error.what, 0) + 1
            if count in wanted:
                shown.append(ShownRecord(count, record.where, refused=error.what))
            continue
        lost.add(record, not made)
        samples += len(made)
        if count in wanted:
            shown.append(shown_record(task, count, record, made))
    else:
        last = 0
    beyond = sorted(number for number in numbers if not 0 < number <= count)
    if beyond:
        raise JoyError(f"there is no record {beyond[0]}: the data have {count}")
    return ShownData(job.task.name, tuple(shown), count, samples, lost, refused, whole=not last)


def shown_record(
    task: Task, number: int, record: records.TrainingRecord, made: Sequence[Sample]
) -> ShownRecord:
    """One record's samples as texts."""
    rows, values = [], dict[str, Any]()
    for sample in made:
        named = task.shown(sample)
        for name, row in named.items():
            pieces = list(token_texts(task.tokenizer, row["tokens"]))
            texts = tuple(text for text, _ in pieces)
            learned = tuple(bool(row["targets"][place]) for _, place in pieces)
            rows.append(ShownRow(name, texts, learned))
        for name, value in sample.items():
            if name not in ("tokens", "spans", "cut", "weight", *named):
                values[name] = readable(value)
    return ShownRecord(
        number, record.where, tuple(rows), values, record.fate.cut, record.fate.dropped,
        tuple(record.unused),
    )  # fmt: skip


def token_texts(tokenizer: Any, tokens: Array) -> Iterator[tuple[str, int]]:
    """The text of each token and its place; tokens that are parts of one sign come as one."""
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=False)
    for place, token in enumerate(tokens.tolist()):
        text = stream.step(tokenizer.backend_tokenizer, token)
        if text is not None:
            yield text, place


def readable(value: Array) -> Any:
    """A field of a sample: few numbers, the text or JSON of bytes, else how much there is."""
    if value.dtype.name == "uint8":
        try:
            text = bytes(value).decode()
        except UnicodeDecodeError:
            return f"{value.size:,} bytes"
        try:
            return json.loads(text)
        except ValueError:
            return text
    return value.tolist() if value.size <= SHORT else f"{value.size:,} values"


def document(found: ShownData) -> dict[str, Any]:
    """As JSON; a row in runs of tokens that are read or learned."""
    shown = []
    for record in found.records:
        one = dataclasses.asdict(record)
        one["rows"] = [
            {
                "name": row.name,
                "runs": [
                    {"learned": learned, "tokens": list(tokens), "text": "".join(tokens)}
                    for learned, tokens in runs(row)
                ],
            }
            for row in record.rows
        ]
        shown.append(one)
    return {
        "schema": "joymigrate.shown/1",
        "task": found.task,
        "records": shown,
        "counted": found.counted,
        "whole": found.whole,
        "samples": found.samples,
        "lost": dataclasses.asdict(found.lost),
        "refused": found.refused,
    }


def runs(row: ShownRow) -> Iterator[tuple[bool, tuple[str, ...]]]:
    """Tokens in a row that are all read, or all learned."""
    begin = 0
    for place in range(1, len(row.tokens) + 1):
        if place == len(row.tokens) or row.learned[place] != row.learned[begin]:
            yield row.learned[begin], row.tokens[begin:place]
            begin = place
