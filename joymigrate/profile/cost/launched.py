"""The kernels that the chip launches for a step's operators, from a rehearsal with host checks.

One call is often several kernels: casts, transposes and copies that nobody wrote, and kernels on
the slow CPU of the chip. A rehearsal's report has no sizes for them: they are counted, not timed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.profile.cost.work import Work

SCHEMA = "joymigrate.rehearsal/1"


@dataclass(frozen=True, slots=True)
class Hidden:
    """One operator at one line that launches more than its own kernel; `calls` as rehearsed."""

    op: str
    where: str
    calls: int
    moving: tuple[str, ...]
    slow: tuple[str, ...]  # on the chip's CPU


@dataclass(frozen=True, slots=True)
class Launched:
    """Kernels of one step. Operators that the host code was not asked for count as one each.

    `asked` is the share of the step's operator calls that it answered for.
    """

    kernels: float
    moving: float
    slow: float
    asked: float
    hidden: tuple[Hidden, ...]
    versions: str


def read_launched(path: Path, work: Work) -> Launched:
    """What a rehearsal's report says of the operators of `work`.

    Raises `JoyError` where the file is no such report, or its rehearsal asked no host code.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise JoyError(f"cannot be read: {error}", where=str(path)) from None
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise JoyError(
            "this is no report of a rehearsal",
            where=str(path),
            help="joymigrate rehearse --host-checks CHECKOUTS -o report.json -- COMMAND",
        )
    if not raw.get("launches"):
        raise JoyError(
            "the report names no launched kernels",
            where=str(path),
            help="rehearse with --host-checks: only the vendor's host code knows them",
        )
    return count_launches(raw, work)


def count_launches(report: Mapping[str, Any], work: Work) -> Launched:
    """The same of a report that was read."""
    calls: Counter[str] = Counter()
    sums: dict[str, Counter[str]] = {}
    hidden = []
    for row in report["launches"]:
        op = row["op"].partition(".")[0]
        calls[op] += row["calls"]
        into = sums.setdefault(op, Counter())
        for name in ("kernels", "moving", "aicpu"):
            into[name] += len(row[name]) * row["calls"]
        if row["moving"] or row["aicpu"]:
            hidden.append(
                Hidden(op, row["where"], row["calls"], tuple(row["moving"]), tuple(row["aicpu"]))
            )
    total = dict.fromkeys(("kernels", "moving", "aicpu"), 0.0)
    answered = 0
    for part in work.parts:
        known = sums.get(part.name)
        if known is None:
            total["kernels"] += part.calls
            continue
        answered += part.calls
        for name, count in known.items():
            total[name] += part.calls * count / calls[part.name]
    hidden.sort(key=lambda one: -one.calls * (len(one.moving) + len(one.slow)))
    return Launched(
        total["kernels"], total["moving"], total["aicpu"],
        answered / work.launches if work.launches else 0.0,
        tuple(hidden), str((report.get("host_checks") or {}).get("versions", "")),
    )  # fmt: skip
