"""Tables (CSV) that profilers write, told by their columns under any file name.

Rows of a chip's own profiler are kernels that ran on the chip, not torch's operators; what ran on
its own processor (AI_CPU) is told apart by `core`. Rows of other profilers are kernels that belong
to no operator. Columns as in these documents:
kernel_details, op_summary, op_statistic: CANN 8.0 and 8.5 "Profiling", op_summary (Task Type, Task
Start Time(us), Task Duration(us)), op_statistic (OP Type, Core Type, Count, Total Time(us));
nsys stats: Nsight Systems "Analysis Guide", cuda_gpu_kern_sum: "All time values default to
nanoseconds", "Total Time : Total time used by all executions of this kernel", "Instances :
Number of calls to this kernel"; its CSV has Time (%), Total Time (ns), Instances, …, Name; that of
cuda_gpu_mem_time_sum has Count and Operation ("[CUDA memcpy Device-to-Host]") in their place;
rocprofv3: ROCprofiler-SDK "Using rocprofv3", kernel_trace.csv, and memory_copy_trace.csv, whose
Direction is MEMORY_COPY_DEVICE_TO_HOST or the like.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from math import isfinite
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.profile.attribute import COPY
from joymigrate.profile.readers.binder import Binder
from joymigrate.profile.table import EMPTY, CallSignature, OpTable, Trace

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
START = ("Start Time(us)", "Task Start Time(us)")
NAME, SUM, TIMES = ("Name", "Operation"), ("Total Time (ns)",), ("Instances", "Count")
MOVED = re.compile(r"memcpy|memset|memory_copy", re.IGNORECASE)  # work that is no kernel
TRACED, BEGIN, END = ("Kernel_Name", "Direction"), ("Start_Timestamp",), ("End_Timestamp",)


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


def read_kernel_sum(path: Path) -> Trace:
    """`nsys stats --report cuda_gpu_kern_sum --format csv`: one row per kernel."""
    work = LooseTable(path, "nsys_stats")
    for row in rows(path, NAME, SUM, TIMES):
        work.add(first(row, NAME), 0.0, number(first(row, SUM)), number(first(row, TIMES)))
    return work.trace()


def read_kernel_trace(path: Path) -> Trace:
    """rocprofv3's `kernel_trace.csv`: one row per launch."""
    work = LooseTable(path, "rocprof")
    for row in rows(path, TRACED, BEGIN, END):
        begin, end = number(first(row, BEGIN)), number(first(row, END))
        ns = end - begin if begin is not None and end is not None else None
        work.add(first(row, TRACED), (begin or 0.0) / 1e3, ns, 1)
    return work.trace()


class LooseTable:
    """Rows that are kernels of nobody's: what they compute is known by their names at most."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path, self.kind = path, kind
        self.binder = Binder(OpTable())
        self.bad = 0

    def add(self, name: str, ts: float, ns: float | None, calls: float | None) -> None:
        """Take one row in. One without a name, a time or calls is counted as bad."""
        if not name or ns is None or ns < 0 or calls is None:
            self.bad += 1
            return
        kind = COPY if MOVED.search(name) else ""
        self.binder.work.add(name, kind, ts, ns / 1e3, calls=int(calls))

    def trace(self) -> Trace:
        """The rows as a trace."""
        if not len(self.binder.work):
            raise JoyError("no kernels in this table", where=str(self.path))
        notes = ["rows are kernels; nothing in them tells which operator launched them"]
        if self.bad:
            notes.append(f"{self.bad} rows could not be read and were left out")
        return Trace(
            self.path, self.kind, self.binder.table, notes=tuple(notes), **self.binder.bind()
        )


class KernelTable:
    """Rows that are kernels: each owns its own time."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path, self.kind = path, kind
        self.table = OpTable()
        self.binder = Binder(self.table)
        self.bad = 0

    def add(
        self, row: dict[str, str], us: float | None, calls: float | None, signature: CallSignature
    ) -> None:
        """Take one row in. One without a kind, a time or calls is counted as bad."""
        kind, core = first(row, TYPE).strip(), first(row, CORE).strip()
        if us is None or us < 0 or calls is None or not kind:
            self.bad += 1
            return
        ts = number(first(row, START)) or 0.0
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


def signature_of(row: dict[str, str]) -> CallSignature:
    """Shapes `"4,8;8,8"` and dtypes `FLOAT16;DT_BF16` of a row."""
    types = [t.strip() for t in (row.get("Input Data Types") or "").split(";")]
    shapes = (row.get("Input Shapes") or "").strip().strip('"').split(";")
    dims = tuple(
        tuple(int(n) for n in shape.split(",") if n.strip().lstrip("-").isdigit())
        for shape in shapes
    )
    dtypes = tuple(DTYPES.get(t, "") for t in types)
    return CallSignature(dtypes, dims, (), tuple("tensor" if d else "value" for d in dtypes))


def kind_of(start: bytes, text: str) -> str:
    """The kind of a table, from the columns in its first line; empty for an unknown one."""
    try:
        columns = set(next(csv.reader([text.partition("\n")[0]]), []))
    except csv.Error:  # a lone carriage return: no table
        return ""
    return next((k for k, needed in KINDS.items() if all(columns & set(n) for n in needed)), "")


KINDS = {
    "kernel_details": (TYPE, DURATION),
    "op_statistic": (TYPE, TOTAL),
    "nsys_stats": (NAME, SUM, TIMES),
    "rocprof": (TRACED, BEGIN, END),
}
RANK = 10
READERS = {
    "kernel_details": read_details,
    "op_statistic": read_statistic,
    "nsys_stats": read_kernel_sum,
    "rocprof": read_kernel_trace,
}
