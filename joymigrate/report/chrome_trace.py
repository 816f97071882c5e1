"""A recording as a Chrome trace with each operator's status on it, for Perfetto and the like.

Operators keep their thread, start and duration; category and arguments say what the chip does with
them. Gaps get a mark of their own on a track per status, so that they are found at a glance.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.profile.coverage import mark
from joymigrate.profile.oplist.lists import OpList
from joymigrate.profile.support import Support, SupportStatus
from joymigrate.profile.table import Trace

COLORS = {
    SupportStatus.NATIVE: "good",
    SupportStatus.FUSED: "good",
    SupportStatus.COMPOSITE: "grey",
    SupportStatus.CPU_FALLBACK: "bad",
    SupportStatus.MISSING: "terrible",
    SupportStatus.UNKNOWN: "yellow",
}
PROGRAM, MARKS = 1, 2  # processes of the written trace


def render(trace: Trace, oplist: OpList) -> str:
    """The trace as JSON text."""
    if not trace.tree or not any(trace.ops.ts):
        raise JoyError(
            "this recording has no timeline to mark",
            where=str(trace.path),
            help="give the Chrome trace that lies beside it (NAME.trace.json.gz)",
        )
    events = [*titles(oplist), *operators(trace, dict(mark(trace, oplist)))]
    document = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "joymigrate": {"chip": oplist.chip.name, "version": oplist.version},
        "traceEvents": events,
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n"


def titles(oplist: OpList) -> Iterator[dict[str, Any]]:
    """Names of the tracks."""
    names = ((PROGRAM, "program"), (MARKS, f"not on {oplist.chip.name} {oplist.version}"))
    for process, name in names:
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    for index, status in enumerate(SupportStatus):
        if not status.supported:
            yield {"ph": "M", "name": "thread_name", "pid": MARKS, "tid": index,
                   "args": {"name": status.value}}  # fmt: skip


def operators(trace: Trace, said: dict[int, Support]) -> Iterator[dict[str, Any]]:
    """Every row, and for each gap one more on the track of its status."""
    order = list(SupportStatus)
    for row in trace.ops.rows():
        support = said.get(row.index)
        event: dict[str, Any] = {
            "ph": "X",
            "name": row.name,
            "cat": support.status.value if support else "inside" if row.operator else "other",
            "pid": PROGRAM,
            "tid": row.tid,
            "ts": row.ts,
            "dur": row.dur,
        }
        if support:
            event["cname"] = COLORS[support.status]
            event["args"] = {
                "status": support.status.value,
                "note": support.note,
                "source": support.source,
                "where": row.place,
                "grade": None if support.status is SupportStatus.UNKNOWN else support.grade,
                "dtypes": list(row.signature.tensor_dtypes),
            }
        yield event
        if support and not support.supported:
            yield {**event, "pid": MARKS, "tid": order.index(support.status)}
