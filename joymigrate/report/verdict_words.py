"""How verdicts read: one headline, numbers in a readable form, one tone per outcome."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from joymigrate.language import Text, current_language, mark, tell

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


def code_line(first: Mapping[str, Any]) -> str:
    """Where the code of a first divergence stands: one line, or both sides' where they differ."""
    lines = first.get("line") or {}
    here, there = lines.get("target") or "", lines.get("baseline") or ""
    if not here or here == there:
        return here or there
    return tell("{here} ({there} in the baseline)", here=here, there=there) if there else here


def headline(document: Mapping[str, Any]) -> str:
    """`PASS at S8 (task)`, with a mark where the chip was simulated."""
    stage = document.get("stage")
    titles = {s["stage"]: s["title"] for s in document.get("stages", ())}
    where = ""
    if stage in titles:
        where = tell(" at {stage} ({title})", stage=stage, title=titles[stage])
    elif stage:
        where = tell(" at {stage}", stage=stage)
    mark = tell(" [rehearsal: a simulated chip]") if document.get("rehearsal") else ""
    return f"{tell(str(document['verdict']).upper())}{where}{mark}"


def place(first: Mapping[str, Any]) -> str:
    """Where the first divergence is: module, call, phase, operator, step."""
    call = tell(" call {number}", number=first["call"]) if first.get("call") else ""
    module = first.get("module") or first.get("op") or "the run"
    # A module may be called like one of our words: only what was composed, or is ours, is told.
    said = tell(module) if isinstance(module, Text) or module == "the run" else str(module)
    parts = [said + call]
    if first.get("module") and first.get("op"):
        parts.append(content(first["op"]))
    if first.get("phase"):
        parts.append(tell(str(first["phase"])))
    if first.get("step") is not None:
        parts.append(tell("step {number}", number=first["step"]))
    return join_parts(parts)


CONTENTS = (
    (re.compile(r"in (\d+)"), "input {name}"),
    (re.compile(r"out(?: (\d+))?"), "output {name}"),
    (re.compile(r"gout(?: (\d+))?"), "gradient of output {name}"),
    (re.compile(r"grad (\S+)"), "gradient of {name}"),
    (re.compile(r"param (\S+)"), "parameter {name}"),
    (re.compile(r"state (\S+)"), "optimiser state {name}"),
)


def content(op: str) -> str:
    """An operator, or what a record of a module holds, such as `grad weight`."""
    if current_language() != "en":
        if isinstance(op, Text):  # a sentence of ours, no operator's name
            return tell(op)
        for pattern, template in CONTENTS:
            found = pattern.fullmatch(op)
            if found:
                return tell(template, name=found[1] or "").strip()
    return tell("operator {op}", op=op)


def join_parts(parts: Iterable[str]) -> str:
    """Parts with commas between them."""
    return mark("clause").join(parts)


def part_of(number: int, total: int) -> str:
    """`3 of 4`."""
    return tell("{number} of {total}", number=f"{number:,}", total=f"{total:,}")


def remarks(stage: Mapping[str, Any]) -> str:
    """Why a stage came out as it did, and its notes, on one line."""
    found = [tell(one) for one in (stage.get("reason") or "", *stage.get("notes", ())) if one]
    return mark("semicolon").join(found)


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


def covers_program(document: Mapping[str, Any]) -> bool:
    """Whether a verdict says what it covers of a whole program, and not of one kind of result."""
    return bool(document.get("covered")) and len(document.get("stages", ())) > 1


def compared_records(document: Mapping[str, Any]) -> tuple[int, int]:
    """How many records were held against each other, and how many there are."""
    found = counts(document)
    total = sum(found.values())
    return total - found.get("UNCOMPARED", 0) - found.get("RANDOM", 0), total


def counts(document: Mapping[str, Any]) -> dict[str, int]:
    """Number of records of each status, worst first."""
    found = dict.fromkeys(SEVERITY, 0)
    for record in document.get("records", ()):
        found[record["status"]] += 1
    return {status: number for status, number in found.items() if number}
