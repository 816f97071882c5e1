"""SQLite exports of Nsight Systems (`nsys export --type sqlite`).

Operators are in it where torch emitted NVTX ranges (`--pytorch=autograd-nvtx`, or
`torch.autograd.profiler.emit_nvtx`): their names come with `, seq = 12` and `, sizes = [[…]]`.
Kernels belong to the range that is open where their launch was called; a launch is found by its
process and its number. Graphs come as kernels (`--cuda-graph-trace=node`) or whole. Times are in
nanoseconds. Tables: Nsight Systems' User Guide, "SQLite Schema Reference".
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
from joymigrate.profile.readers.binder import LAUNCHES, WHOLE_GRAPH, Binder
from joymigrate.profile.readers.names import freeze, is_operator
from joymigrate.profile.readers.sweep import EVENT, MARK, POINT, EventColumns
from joymigrate.profile.table import EMPTY, CallSignature, OpTable, Trace

RANGES = "NVTX_EVENTS"
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
COPIES = ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
# CUPTI's CUpti_ActivityMemcpyKind (cupti_activity.h), in the words of torch's own traces.
WAYS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD",
        9: "HtoH", 10: "PtoP"}  # fmt: skip
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
PROCESS = 24  # bits of the thread in a global thread id; a global process id has zeros there
FREE = 60  # eventType of ranges that begin and end anywhere: they do not nest
TORCH = frozenset(("aten", "prims", "prim", "c10d", "_c10d_functional", "c10d_functional",
                   "quantized", "fbgemm", "torchvision"))  # fmt: skip
NAME = re.compile(r"(?P<space>\w[\w.]*)::\w[\w.]*")
SIGN = b"SQLite format 3\0"
PART = re.compile(r", (?P<key>seq|op_id|sizes|stashed seq|input_op_ids) = ")


def read(path: Path) -> Trace:
    """One export."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
            return NsysReader(path, base).read()
    except sqlite3.Error as error:
        raise JoyError(f"not readable as SQLite: {error}", where=str(path)) from None


class NsysReader:
    """Reads one database."""

    def __init__(self, path: Path, base: sqlite3.Connection) -> None:
        self.path = path
        self.base = base
        tables = base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        self.columns = {
            name: {row[1] for row in base.execute(f'PRAGMA table_info("{name}")')}
            for (name,) in tables
        }
        self.table = OpTable()
        self.timeline = EventColumns(self.table)
        self.binder = Binder(self.table)
        self.processes: dict[int, int] = {}
        self.texts: dict[int, str] = {}

    def read(self) -> Trace:
        """Ranges, launches and kernels put together."""
        if not self.columns.keys() & {RANGES, KERNELS, *COPIES, GRAPHS}:
            raise JoyError(
                "neither ranges nor kernels in this database",
                where=str(self.path),
                help="nsys export --type sqlite report.nsys-rep",
            )
        self.texts = dict(self.rows("StringIds", "id", "value"))
        self.ranges()
        self.calls()
        self.timeline.build()
        self.work()
        binder = self.binder
        notes: list[Any] = binder.times.notes(binder.work, self.timeline.span_us())
        if not any(self.table.operator):
            notes.append("no operators in it: profile with nsys profile --pytorch=autograd-nvtx")
        if WHOLE_GRAPH in {kind for _, kind in binder.work.names}:
            notes.append("graphs were recorded whole: --cuda-graph-trace=node shows their kernels")
        overloads = any(n.startswith("aten::") and "." in n for n in self.table.names)
        return Trace(
            self.path, "nsys", self.table, overloads=overloads, notes=tuple(notes),
            **binder.bind(self.timeline),
        )  # fmt: skip

    def rows(self, table: str, *columns: str) -> Iterator[Any]:
        """Rows of a table; None for a column, and nothing for a table, that is not there."""
        if table not in self.columns:
            return iter(())
        known = self.columns[table]
        asked = ", ".join(f'"{one}"' if one in known else "NULL" for one in columns)
        return iter(self.base.execute(f'SELECT {asked} FROM "{table}"'))

    def thread(self, thread: int) -> int:
        """The number of a thread: its process lies above the lowest 24 bits."""
        return self.timeline.thread_id(thread >> PROCESS, thread)

    def number(self, correlation: int, process: int | None) -> int:
        """A number of its own for a launch: those in the file repeat between processes."""
        if process is None:  # an old export
            return correlation
        place = self.processes.setdefault(process >> PROCESS, len(self.processes) + 1)
        return place << 32 | correlation

    def ranges(self) -> None:
        """Ranges with an end: torch's operators, and marks of anybody."""
        columns = ("start", "end", "globalTid", "text", "textId", "eventType")
        for start, end, thread, text, number, kind in self.rows(RANGES, *columns):
            written = text or self.texts.get(number, "")
            if end is None or not written or kind == FREE:
                continue
            sort, name, sizes = split_range(written)
            self.timeline.add(
                sort,
                self.thread(thread),
                start / 1e3,
                (end - start) / 1e3,
                name=self.table.name_id(name),
                signature=self.table.signature_id(sizes),
            )

    def calls(self) -> None:
        """Calls of the runtime as points of the timeline."""
        by_process = "globalPid" in self.columns.get(KERNELS, self.columns.get(GRAPHS, set()))
        columns = ("start", "globalTid", "correlationId", "nameId")
        for start, tid, correlation, name_id in self.rows(RUNTIME, *columns):
            number = self.number(correlation, tid if by_process else None)
            thread, name = self.thread(tid), self.texts.get(name_id, "")
            self.timeline.add(POINT, thread, start / 1e3, 0.0, order=number)
            if LAUNCHES.search(name):
                self.binder.launches.add(name, "", number, thread, start / 1e3)
            if "StreamBeginCapture" in name or "StreamEndCapture" in name:
                mark = (thread, start / 1e3, "Begin" in name)
                self.binder.launches.captures.append(mark)

    def work(self) -> None:
        """Kernels, copies, and graphs that were recorded whole."""
        launches = self.binder.launches
        columns = ("start", "end", "correlationId", "globalPid", "demangledName", "graphNodeId",
                   "copyKind")  # fmt: skip
        for table, kind in ((KERNELS, ""), *((one, "copy") for one in COPIES)):
            for start, end, correlation, process, text, node, way in self.rows(table, *columns):
                number = self.number(correlation, process)
                if node:
                    launches.graphs.add(number)
                moved = f"Memcpy {WAYS[way]}" if way in WAYS else ""
                name = self.texts.get(text, "") or moved or table.rpartition("_")[2].lower()
                self.add(name, kind, start, end, number)
        seen = set(self.binder.work.correlation)
        whole = ("start", "end", "correlationId", "globalPid", "graphId")
        for start, end, correlation, process, graph in self.rows(GRAPHS, *whole):
            number = self.number(correlation, process)
            if number not in seen:  # else its kernels were recorded, too
                launches.graphs.add(number)
                self.add(f"graph {graph}", WHOLE_GRAPH, start, end, number)

    def add(self, name: str, kind: str, start: int, end: int, number: int) -> None:
        """One piece of device work."""
        us = (end - start) / 1e3
        if us < 0:
            self.binder.times.impossible += 1
        self.binder.times.take(start / 1e3, us)
        self.binder.work.add(name, kind, start / 1e3, max(0.0, us), correlation=number)


def split_range(text: str) -> tuple[int, str, CallSignature]:
    """Kind, name and sizes of `aten::addmm, seq = 5, op_id = 7, sizes = [[8], [4, 8], [8, 8]]`.

    `FSDP::pre_forward (x)` looks like an operator and is a library's mark. The dispatcher writes a
    sequence number or sizes; of names alone, those in torch's own namespaces are operators.
    """
    parts = PART.split(text)
    name, fields = parts[0], dict(zip(parts[1::2], parts[2::2], strict=False))
    written = NAME.fullmatch(name)
    called = written and (written["space"] in TORCH or fields.keys() & {"seq", "sizes"})
    kind = EVENT if called or not is_operator(name) else MARK
    try:
        dims = ast.literal_eval(fields.get("sizes", "[]"))
    except (ValueError, SyntaxError):
        dims = []
    return kind, name, CallSignature(dims=freeze(dims)) if dims else EMPTY


def kind_of(start: bytes, text: str) -> str:
    """nsys for an SQLite database."""
    return "nsys" if start.startswith(SIGN) else ""


RANK = 0
READERS = {"nsys": read}
