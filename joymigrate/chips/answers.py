"""What the vendor's code was recorded to answer about single tensors: `ops/host_answers.csv`.

Facts, recorded per kernel, tensor and model with their source. A dtype that is neither taken nor
refused is not known.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from joymigrate.errors import JoyError

COLUMNS = ("kernel", "parameter", "role", "optional", "models", "takes", "refuses", "most",
           "source")  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorAnswer:
    """One tensor of a kernel on some models. `optional` is yes, no, or empty where nobody knows;
    `most` is a limit of dimensions, 0 where none was met."""

    kernel: str
    parameter: str
    role: str  # in, out, inout
    optional: str
    models: frozenset[str]
    takes: frozenset[str]
    refuses: frozenset[str]
    most: int
    source: str


Signature = tuple[TensorAnswer, ...]  # the tensors of one kernel in the order of its arguments


@cache
def read_answers(path: Path) -> tuple[TensorAnswer, ...]:
    """The rows of a table; none where the chip has no such file."""
    if not path.is_file():
        return ()
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file)
        if tuple(lines.fieldnames or ()) != COLUMNS:
            raise JoyError(
                f"a table of answers has the columns {','.join(COLUMNS)}",
                where=str(path),
            )
        return tuple(read_row(row, f"{path}:{number}") for number, row in enumerate(lines, 2))


def read_row(row: Mapping[str, str], where: str) -> TensorAnswer:
    """One line of a table, checked."""
    most = row["most"] or "0"
    if not most.isdecimal():
        raise JoyError(f"most is a number of dimensions, not '{most}'", where=where)
    return TensorAnswer(
        row["kernel"], row["parameter"], row["role"], row["optional"],
        frozenset(row["models"].split()), frozenset(row["takes"].split()),
        frozenset(row["refuses"].split()), int(most), row["source"],
    )  # fmt: skip


def answers_for(rows: Iterable[TensorAnswer], model: str) -> dict[str, Signature]:
    """What each kernel takes on one model."""
    found: dict[str, list[TensorAnswer]] = {}
    for row in rows:
        if model in row.models:
            found.setdefault(row.kernel, []).append(row)
    return {kernel: tuple(tensors) for kernel, tensors in found.items()}


def table_of(rows: Iterable[TensorAnswer]) -> str:
    """Rows as a CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([cell(getattr(row, field.name)) for field in fields(row)])
    return text.getvalue()


def cell(value: object) -> str:
    """One value of a row as text."""
    if isinstance(value, frozenset):
        return " ".join(sorted(value))
    return str(value or "")
