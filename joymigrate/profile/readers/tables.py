"""Tables that Ascend's profiler writes: `kernel_details.csv` and `op_statistic.csv`.

Their rows are kernels of the chip, not torch's operators. What ran on the chip is there; what ran
on its own processor (AI_CPU) ran slowly, and is told apart by `core`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from math import isfinite
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.profile.readers.binder import Binder
from joymigrate.profile.table import EMPTY, OpTable, Signature, Trace

DTYPES = {
    "FLOAT": "float32", "FLOAT16": "float16", "DT_BF16": "bfloat16", "BF16": "bfloat16",
    "DOUBLE": "float64", "BOOL": "bool", "INT8": "int8", "INT16": "int16", "INT32": "int32",
    "INT64": "int64", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32",
    "UINT64": "uint64", "COMPLEX64": "complex64", "COMPLEX128": "complex128",
}  # fmt: skip
NAMESPACE = "kernel"
# The same column under the names that releases gave it.
TYPE = ("Type", "OP Type", "Op Type")
CORE = ("Accelerator Core", "Core Type", "Task Type")
DURATION = ("Duration(us)", "Task Duration(us)")
TOTAL = ("Total Time(us)",)


def read_details(path: Path) -> Trace:
    """`kernel_details.csv`: one row per launch."""
    table = KernelTable(path, "kernel_details")
    for row in rows(path, TYPE, DURATION):
        table.add(row, number(first(row, DURATION)), 1, signature_of(row))
    return table.trace()


def read_statistic(path: Path) -> Trace:
    """`op_statistic.csv`: one row per kind of kernel."""
    table = KernelTable(path, "op_statistic")
    for row in rows(path, TYPE, TOTAL):
        table.add(row, number(first(row, TOTAL)), number(row.get("Count")), EMPTY)
    return table.trace()


class KernelTable:
    """Rows that are kernels: each owns its own time."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path, self.kind = path, kind
        self.table = OpTable()
        self.binder = Binder(self.table)
        self.bad = 0

    def add(
        self, row: dict[str, str], us: float | None, calls: float | None, signature: Signature
    ) -> None:
        """Take one row in. One without a kind, a time or calls is counted as bad."""
        kind, core = first(row, TYPE).strip(), first(row, CORE).strip()
        if us is None or us < 0 or calls is None or not kind:
            self.bad += 1
            return
        ts = number(row.get("Start Time(us)")) or 0.0
        added = self.table.add(
            self.table.name_id(f"{NAMESPACE}::{kind}"),
            signature=self.table.signature_id(signature),
            ts=ts,
            dur=us,
            self_us=us,
            calls=int(calls),
        )
        self.binder.work.add(kind, core, ts, us, row=added, calls=int(calls))

    def trace(self) -> Trace:
        """The rows as a trace."""
        if not len(self.table):
            raise JoyError("no kernels in this table", where=str(self.path))
        notes = ["rows are kernels that ran on the chip, not torch's operators"]
        if self.bad:
            notes.append(f"{self.bad} rows could not be read and were left out")
        return Trace(
            self.path, self.kind, self.table, tree=False, device="npu", ran=True,
            notes=tuple(notes), **self.binder.bind(),
        )  # fmt: skip


def rows(path: Path, *needed: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Rows with their values; a missing column is an error."""
    with path.open(encoding="utf-8-sig", newline="", errors="replace") as file:
        reader = csv.DictReader(line.replace("\0", "") for line in file)
        columns = reader.fieldnames or []
        for names in needed:
            if not any(name in columns for name in names):
                raise JoyError(f"no column '{names[0]}' in this table", where=str(path))
        yield from reader


def first(row: dict[str, str], names: tuple[str, ...]) -> str:
    """The value of the first of several columns that is there."""
    return next((row[name] for name in names if row.get(name) is not None), "")


def number(text: str | None) -> float | None:
    """A number; profilers put tabs behind them to keep spreadsheets from rounding."""
    try:
        found = float((text or "").strip())
    except ValueError:
        return None
    return found if isfinite(found) else None


def signature_of(row: dict[str, str]) -> Signature:
    """Shapes `"4,8;8,8"` and dtypes `FLOAT16;DT_BF16` of a row."""
    types = [t.strip() for t in (row.get("Input Data Types") or "").split(";")]
    shapes = (row.get("Input Shapes") or "").strip().strip('"').split(";")
    dims = tuple(
        tuple(int(n) for n in shape.split(",") if n.strip().lstrip("-").isdigit())
        for shape in shapes
    )
    dtypes = tuple(DTYPES.get(t, "") for t in types)
    return Signature(dtypes, dims, (), tuple("tensor" if d else "value" for d in dtypes))


def kind_of(start: bytes, text: str) -> str:
    """The kind of a CSV, from its first line; empty for an unknown one."""
    try:
        columns = set(next(csv.reader([text.partition("\n")[0]]), []))
    except csv.Error:  # a lone carriage return: no table
        return ""
    if not columns & set(TYPE):
        return ""
    if columns & set(DURATION):
        return "kernel_details"
    return "op_statistic" if columns & set(TOTAL) else ""


RANK = 10
READERS = {"kernel_details": read_details, "op_statistic": read_statistic}
