"""SQLite exports of Nsight Systems (`nsys export --type sqlite`).

Operators are in it where torch emitted NVTX ranges (`--pytorch=autograd-nvtx`, or
`torch.autograd.profiler.emit_nvtx`): their names come with `, seq = 12` and `, sizes = [[…]]`.
Kernels belong to the range that is open where their launch was called. Times are in nanoseconds.
"""

from __future__ import annotations

import ast
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.profile.readers.sweep import EVENT, POINT, Timeline
from joymigrate.profile.table import NONE, Kernel, OpTable, Signature, Trace

RANGES = "NVTX_EVENTS"
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
COPIES = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
SIGN = b"SQLite format 3\0"
PART = re.compile(r", (?P<key>seq|op_id|sizes|stashed seq|input_op_ids) = ")


def read(path: Path) -> Trace:
    """One export."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
            return Reader(path, base).read()
    except sqlite3.Error as error:
        raise JoyError(f"not readable as SQLite: {error}", where=str(path)) from None


class Reader:
    """Reads one database."""

    def __init__(self, path: Path, base: sqlite3.Connection) -> None:
        self.path = path
        self.base = base
        rows = base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.tables = {row[0] for row in rows}
        self.table = OpTable()
        self.timeline = Timeline(self.table)

    def read(self) -> Trace:
        """Ranges, launches and kernels put together."""
        if not self.tables & {RANGES, KERNELS}:
            raise JoyError(
                "neither ranges nor kernels in this database",
                where=str(self.path),
                help="nsys export --type sqlite report.nsys-rep",
            )
        texts = dict(self.rows("SELECT id, value FROM StringIds", "StringIds"))
        self.ranges(texts)
        points = self.launches()
        self.timeline.build()
        kernels = self.kernels(texts, points)
        notes = []
        if not len(self.table):
            notes.append("no operators in it: profile with nsys profile --pytorch=autograd-nvtx")
        overloads = any(n.startswith("aten::") and "." in n for n in self.table.names)
        return Trace(
            self.path, "nsys", self.table, kernels, overloads=overloads, notes=tuple(notes)
        )

    def rows(self, query: str, table: str) -> Iterator[Any]:
        """Rows of a query; none where its table is not there."""
        return iter(self.base.execute(query)) if table in self.tables else iter(())

    def ranges(self, texts: dict[int, str]) -> None:
        """NVTX ranges with an end."""
        query = f"SELECT start, end, globalTid, text, textId FROM {RANGES} WHERE end IS NOT NULL"
        for start, end, thread, text, number in self.rows(query, RANGES):
            written = text or texts.get(number, "")
            if not written:
                continue
            name, sizes = split_range(written)
            self.timeline.add(
                EVENT,
                self.timeline.thread_id("", thread),
                start / 1e3,
                (end - start) / 1e3,
                name=self.table.name_id(name),
                signature=self.table.signature_id(sizes),
            )

    def launches(self) -> dict[int, int]:
        """Runtime calls by correlation, as points of the timeline."""
        found = {}
        query = f"SELECT start, globalTid, correlationId FROM {RUNTIME}"
        for number, (start, thread, correlation) in enumerate(self.rows(query, RUNTIME), 1):
            found[correlation] = number
            self.timeline.add(
                POINT, self.timeline.thread_id("", thread), start / 1e3, 0.0, order=number
            )
        return found

    def kernels(self, texts: dict[int, str], points: dict[int, int]) -> tuple[Kernel, ...]:
        """Device work by name and operator."""
        found: dict[tuple[str, str, str], list[float]] = {}
        queries = [
            (f"SELECT demangledName, start, end, correlationId FROM {KERNELS}", KERNELS, ""),
            *((f"SELECT NULL, start, end, correlationId FROM {t}", t, "copy") for t in COPIES),
        ]
        for query, table, kind in queries:
            for number, start, end, correlation in self.rows(query, table):
                us = (end - start) / 1e3
                row = self.timeline.owner.get(points.get(correlation, NONE), NONE)
                operator = ""
                if row != NONE:
                    self.table.device_us[row] += us
                    operator = self.table.names[self.table.name[row]]
                name = texts.get(number, "") or table.rpartition("_")[2].lower()
                item = found.setdefault((name, operator, kind), [0, 0.0])
                item[0] += 1
                item[1] += us
        return tuple(
            Kernel(name, operator, int(calls), us, kind)
            for (name, operator, kind), (calls, us) in found.items()
        )


def split_range(text: str) -> tuple[str, Signature]:
    """Name and sizes of `aten::addmm, seq = 5, op_id = 7, sizes = [[8], [4, 8], [8, 8]]`."""
    parts = PART.split(text)
    fields = dict(zip(parts[1::2], parts[2::2], strict=False))
    sizes = fields.get("sizes")
    if not sizes:
        return parts[0], Signature()
    try:
        dims = ast.literal_eval(sizes)
    except (ValueError, SyntaxError):
        return parts[0], Signature()
    return parts[0], Signature(dims=freeze(dims))


def freeze(value: Any) -> Any:
    """Lists as tuples, so that they can be keys."""
    return tuple(freeze(one) for one in value) if isinstance(value, list) else value


def kind_of(start: bytes, text: str) -> str:
    """nsys for an SQLite database."""
    return "nsys" if start.startswith(SIGN) else ""


RANK = 0
READERS = {"nsys": read}
