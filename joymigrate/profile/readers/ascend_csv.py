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
from joymigrate.profile.table import Kernel, OpTable, Signature, Trace

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
    table = OpTable()
    found: dict[tuple[str, str], list[float]] = {}
    bad = 0
    for row in rows(path, TYPE, DURATION):
        us = number(first(row, DURATION))
        kind, core = first(row, TYPE).strip(), first(row, CORE).strip()
        if us is None or not kind:
            bad += 1
            continue
        item = found.setdefault((kind, core), [0, 0.0])
        item[0] += 1
        item[1] += us
        table.add(
            table.name_id(f"{NAMESPACE}::{kind}"),
            signature=table.signature_id(signature_of(row)),
            ts=number(row.get("Start Time(us)")) or 0.0,
            dur=us,
            self_us=us,
            device_us=us,
        )
    return build_trace(path, "kernel_details", table, found, bad)


def read_statistic(path: Path) -> Trace:
    """`op_statistic.csv`: one row per kind of kernel."""
    table = OpTable()
    found: dict[tuple[str, str], list[float]] = {}
    bad = 0
    for row in rows(path, TYPE, TOTAL):
        us, calls = number(first(row, TOTAL)), number(row.get("Count"))
        kind, core = first(row, TYPE).strip(), first(row, CORE).strip()
        if us is None or calls is None or not kind:
            bad += 1
            continue
        item = found.setdefault((kind, core), [0, 0.0])
        item[0] += calls
        item[1] += us
        table.add(
            table.name_id(f"{NAMESPACE}::{kind}"),
            dur=us,
            self_us=us,
            device_us=us,
            calls=int(calls),
        )
    return build_trace(path, "op_statistic", table, found, bad)


def build_trace(
    path: Path, kind: str, table: OpTable, found: dict[tuple[str, str], list[float]], bad: int
) -> Trace:
    """The trace of one table."""
    kernels = tuple(
        Kernel(name, "", int(calls), us, core) for (name, core), (calls, us) in found.items()
    )
    if not kernels:
        raise JoyError("no kernels in this table", where=str(path))
    notes = ["rows are kernels that ran on the chip, not torch's operators"]
    if bad:
        notes.append(f"{bad} rows could not be read and were left out")
    return Trace(path, kind, table, kernels, tree=False, device="npu", ran=True, notes=tuple(notes))


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
