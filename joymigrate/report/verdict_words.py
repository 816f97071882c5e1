"""How verdicts read: one headline, numbers in a readable form, one tone per outcome."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

TONES = {"pass": "safe", "fail": "report", "inconclusive": "unsafe", "skipped": "plain"}
STATUS_TONES = {
    "IDENTICAL": "safe",
    "PASS": "safe",
    "WARN": "unsafe",
    "FAIL": "report",
    "NAN_MISMATCH": "report",
    "META_DIFF": "unsafe",
    "UNCOMPARED": "plain",
    "RANDOM": "plain",
}
# Worst first: the order of tables.
SEVERITY = (
    "NAN_MISMATCH", "FAIL", "META_DIFF", "WARN", "UNCOMPARED", "RANDOM", "PASS", "IDENTICAL",
)  # fmt: skip
MEANING = {
    "pass": "The target computes the same as the baseline, within the limits.",
    "fail": "The target does not compute the same as the baseline.",
    "inconclusive": "What was compared does not decide it.",
}


def headline(document: Mapping[str, Any]) -> str:
    """`PASS at S8 (task)`, with a mark where the chip was simulated."""
    stage = document.get("stage")
    titles = {s["stage"]: s["title"] for s in document.get("stages", ())}
    where = f" at {stage}" + (f" ({titles[stage]})" if stage in titles else "") if stage else ""
    mark = " [rehearsal: a simulated chip]" if document.get("rehearsal") else ""
    return f"{str(document['verdict']).upper()}{where}{mark}"


def place(first: Mapping[str, Any]) -> str:
    """Where the first divergence is: module, call, phase, operator, step."""
    call = f" call {first['call']}" if first.get("call") else ""
    parts = [f"{first.get('module') or first.get('op') or 'the run'}{call}"]
    if first.get("module") and first.get("op"):
        parts.append(f"operator {first['op']}")
    if first.get("phase"):
        parts.append(str(first["phase"]))
    if first.get("step") is not None:
        parts.append(f"step {first['step']}")
    return ", ".join(parts)


def figure(value: Any) -> str:
    """A number with four digits; what is no number as it is; a dash for nothing."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e6 else f"{value:.2e}"


def percent(value: Any, digits: int = 2) -> str:
    """A percentage; a dash for nothing."""
    return f"{value:.{digits}f} %" if isinstance(value, int | float) else figure(value)


def worst(document: Mapping[str, Any], most: int) -> list[Mapping[str, Any]]:
    """The worst records: by status, then by how far they are beyond their limit."""

    def key(record: Mapping[str, Any]) -> tuple[int, float]:
        value, limit = record.get("value"), record.get("limit")
        excess = 0.0
        if isinstance(value, int | float) and isinstance(limit, int | float) and limit:
            excess = abs(value / limit)
        return SEVERITY.index(record["status"]), -excess

    return sorted(document.get("records", ()), key=key)[:most]


def counts(document: Mapping[str, Any]) -> dict[str, int]:
    """Number of records of each status, worst first."""
    found = dict.fromkeys(SEVERITY, 0)
    for record in document.get("records", ()):
        found[record["status"]] += 1
    return {status: number for status, number in found.items() if number}
