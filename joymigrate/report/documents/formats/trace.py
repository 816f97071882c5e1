"""A profiler's trace in Chrome's format: whoever wrote it, its operators are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def matches(path: Path, head: bytes) -> bool:
    """By the key that such a trace has near its start, or a packed trace's name."""
    return path.name.endswith((".json.gz", ".trace.json")) or b'"traceEvents"' in head


def read(path: Path) -> dict[str, Any]:
    """The operators of the trace, the dearest first; times in microseconds."""
    from joymigrate.profile.readers import read_all

    trace = read_all([path])[0]
    calls: dict[str, int] = {}
    times: dict[str, float] = {}
    for row in trace.ops.rows():
        if row.operator:
            calls[row.name] = calls.get(row.name, 0) + row.calls
            times[row.name] = times.get(row.name, 0.0) + row.self_us
    return {
        "schema": "joymigrate.trace/1",
        "format": trace.kind,
        "device": trace.device or "not said",
        "steps": trace.steps or "not said",
        "operators": len(calls),
        "calls": sum(calls.values()),
        "notes": list(trace.notes),
        "ops": [
            {"op": name, "calls": calls[name], "self_us": round(times[name], 3)}
            for name in sorted(calls, key=lambda name: -times[name])
        ],
    }
