"""A journey as SARIF: the scan's findings, and what only running the program could tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

PLACE = re.compile(r"^(?P<path>[^:\n]+\.\w+):(?P<line>\d+)")
Before = Callable[[str, int], int]

RULES = {
    "trap": ("a trap that the run on the chip sprang", "error"),
    "fallback": ("an operator that runs on the CPU", "warning"),
    "uncovered": ("an operator that the chip does not have", "warning"),
    "divergence": ("the first place where the chip computes something else", "error"),
    "held": ("a step that failed, or that a gate of the journey held", "error"),
}


@dataclass(frozen=True, slots=True)
class SarifFinding:
    """One result: a rule of `RULES`, its text, and `path:line` where that is known."""

    rule: str
    text: str
    where: str = ""


def merge(
    scan: Mapping[str, Any], document: Mapping[str, Any], before: Before, entry: str | None
) -> dict[str, Any]:
    """`scan` is the scan's log; `before` tells a rewritten file's line in the file as it was.

    A result without a place is put at the first line of `entry`, the program.
    """
    log = deepcopy(dict(scan))
    run = log["runs"][0]
    rules = run["tool"]["driver"].setdefault("rules", [])
    index: dict[str, int] = {}
    for one in results(document):
        if one.rule not in index:
            index[one.rule] = len(rules)
            rules.append(descriptor(one.rule))
        path, line = place(one.where, before)
        path = path or entry
        result: dict[str, Any] = {
            "ruleId": f"migrate.{one.rule}",
            "ruleIndex": index[one.rule],
            "level": RULES[one.rule][1],
            "message": {"text": one.text},
        }
        if path:
            result["locations"] = [location(path, line)]
        run["results"].append(result)
    return log


def results(document: Mapping[str, Any]) -> Iterator[SarifFinding]:
    """What every step has to say."""
    steps = {one["name"]: one for one in document["journey"]}
    rehearsal = steps.get("rehearse", {}).get("figures", {})
    for trap in rehearsal.get("found_traps", ()):
        help_ = f" Help: {trap['remedy']}" if trap["remedy"] else ""
        yield SarifFinding("trap", f"{trap['message']}.{help_}", trap["where"])
    lacking = {}
    for op in steps.get("coverage", {}).get("figures", {}).get("lacking", ()):
        lacking[op["op"]] = op
        text = f"{op['op']} is {op['status']} on {document['chip']}, {op['calls']} calls"
        yield SarifFinding("uncovered", text, str(op.get("where") or ""))
    for name in rehearsal.get("fallback_ops", ()):
        if name not in lacking:
            yield SarifFinding("fallback", f"{name} runs on the CPU")
    first = steps.get("verify", {}).get("figures", {}).get("first_divergence")
    if first and steps["verify"]["verdict"] == "fail":
        text = f"{first['module']} ({first['phase']}): {first['metric']} {first['value']}"
        yield SarifFinding("divergence", f"{text}, the limit is {first['limit']}")
    for one in document["journey"]:
        if one["status"] in ("failed", "stopped"):
            yield SarifFinding("held", f"{one['name']}: {one['summary']}")


def place(where: str, before: Before) -> tuple[str | None, int]:
    """The path and the line, in the files as they were committed."""
    match = PLACE.match(where)
    if match is None or match["path"].startswith("/"):
        return None, 1
    return match["path"], before(match["path"], int(match["line"]))


def descriptor(rule: str) -> dict[str, Any]:
    """A rule as SARIF lists it."""
    text = RULES[rule][0]
    return {
        "id": f"migrate.{rule}",
        "name": rule,
        "shortDescription": {"text": text},
        "defaultConfiguration": {"level": RULES[rule][1]},
    }


def location(path: str, line: int) -> dict[str, Any]:
    """A line of a file below the scan's root."""
    uri = quote(path.encode("utf-8", "surrogateescape"))
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": uri, "uriBaseId": "SRCROOT"},
            "region": {"startLine": max(1, line)},
        }
    }
