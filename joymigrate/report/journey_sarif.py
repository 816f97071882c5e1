"""A journey as SARIF: the scan's findings, and what only running the program could tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from joymigrate.report.sarif_log import SarifResult, SarifRule, artifact, extend

PLACE = re.compile(r"^(?P<path>[^:\n]+\.\w+):(?P<line>\d+)")
Before = Callable[[str, int], int]

RULES = {
    name: SarifRule(f"migrate.{name}", title, level, name)
    for name, title, level in (
        ("trap", "a trap that the run on the chip sprang", "error"),
        ("fallback", "an operator that runs on the CPU", "warning"),
        ("uncovered", "an operator that the chip does not have", "warning"),
        ("divergence", "the first place where the chip computes something else", "error"),
        ("held", "a step that failed, or that a gate of the journey held", "error"),
    )
}


def merge(
    scan: Mapping[str, Any], document: Mapping[str, Any], before: Before, entry: str | None
) -> dict[str, Any]:
    """`scan` is the scan's log; `before` tells a rewritten file's line in the file as it was.

    A result without a place is put at the first line of `entry`, the program.
    """
    log = deepcopy(dict(scan))
    made = []
    for rule, text, where in results(document):
        path, line = place(where, before)
        path = path or entry
        found, region = (artifact(path), {"startLine": max(1, line)}) if path else (None, {})
        made.append(SarifResult(RULES[rule], text, found, region))
    extend(log["runs"][0], made)
    return log


def results(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What every step has to say: a rule, its text, and `path:line` where that is known."""
    steps = {one["name"]: one for one in document["journey"]}
    rehearsal = steps.get("rehearse", {}).get("figures", {})
    for trap in rehearsal.get("found_traps", ()):
        help_ = f" Help: {trap['remedy']}" if trap["remedy"] else ""
        yield "trap", f"{trap['message']}.{help_}", trap["where"]
    lacking = {}
    for op in steps.get("coverage", {}).get("figures", {}).get("lacking", ()):
        lacking[op["op"]] = op
        text = f"{op['op']} is {op['status']} on {document['chip']}, {op['calls']} calls"
        yield "uncovered", text, str(op.get("where") or "")
    for name in rehearsal.get("fallback_ops", ()):
        if name not in lacking:
            yield "fallback", f"{name} runs on the CPU", ""
    first = steps.get("verify", {}).get("figures", {}).get("first_divergence")
    if first and steps["verify"]["verdict"] == "fail":
        text = f"{first['module']} ({first['phase']}): {first['metric']} {first['value']}"
        yield "divergence", f"{text}, the limit is {first['limit']}", ""
    for one in document["journey"]:
        if one["status"] in ("failed", "stopped"):
            yield "held", f"{one['name']}: {one['summary']}", ""


def place(where: str, before: Before) -> tuple[str | None, int]:
    """The path and the line, in the files as they were committed."""
    match = PLACE.match(where)
    if match is None or match["path"].startswith("/"):
        return None, 1
    return match["path"], before(match["path"], int(match["line"]))
