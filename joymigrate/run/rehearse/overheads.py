"""What calls cost besides their arithmetic: casts, copies, operands that do not lie as a kernel
reads them, kernels on the chip's slow CPU, and waits of the host. Counted per line of the program
and per step of its optimizer, never as seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joymigrate.language import tell

CAST, COPY, STRIDED, UNALIGNED, SLOW, WAIT = "cast", "copy", "strided", "unaligned", "slow", "wait"
MANY_CALLS = 10  # a number at the end of a program, or of each epoch, is no matter
PLACES = 3
SAID = {
    CAST: "casts: {number}{more}: {places}",
    COPY: "copies on the chip: {number}{more}: {places}",
    STRIDED: (
        "operands that are not contiguous, which most kernels copy first: {number}{more}: {places}"
    ),
    UNALIGNED: (
        "factors of matrix products whose inner axis is no multiple of 512 bytes, and is read "
        "slowly: {number}{more}: {places}"
    ),
    WAIT: "the host waited for the chip: {number}{more}: {places}",
}


@dataclass(frozen=True, slots=True)
class Overhead:
    """One overhead of a call: its kind, what it is about, and for slow kernels which, by whom."""

    kind: str
    op: str
    what: str = ""
    kernels: tuple[str, ...] = ()
    source: str = ""


def merge_overheads(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of all processes, most calls first: calls added up, per step those of the process with
    the most. Of a program without two steps nothing is said per step."""
    rows: dict[str, dict[str, Any]] = {}
    for record in records:
        for key, row in record["overheads"].items():
            made = rows.setdefault(key, {**row, "calls": 0})
            made.pop("in_steps", None)
            made["calls"] += row["calls"]
            if record["steps"] > 1:
                mine = round(row["in_steps"] / (record["steps"] - 1), 2)
                made["per_step"] = max(mine, made.get("per_step", 0))
    return sorted(rows.values(), key=lambda row: (-row["calls"], row["kind"], row["where"]))


def slow_kernels(costs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Calls of which a kernel is recorded to run on the chip's own CPU, most calls first."""
    kept = ("op", "where", "calls", "per_step", "source")
    return [
        {**{key: row[key] for key in kept if key in row}, "aicpu": row["kernels"]}
        for row in costs
        if row["kind"] == SLOW
    ]


def host_waits(costs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Lines at which the host waits for the chip, most calls first."""
    places: Counter[str] = Counter()
    for row in costs:
        places[row["where"]] += row["calls"] * (row["kind"] == WAIT)
    return [{"where": place, "calls": calls} for place, calls in places.most_common() if calls]


def overhead_lines(costs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each kind that is in every step, or that is often met where no steps were seen:
    how often in all and per step, and the places with the most."""
    lines = []
    for kind, said in SAID.items():
        rows = [row for row in costs if row["kind"] == kind]
        number = sum(row["calls"] for row in rows)
        in_steps = sum(row.get("per_step", 0) for row in rows)
        stepped = any("per_step" in row for row in rows)
        if in_steps < 1 if stepped else number < MANY_CALLS:
            continue
        rows.sort(key=lambda row: -row.get("per_step", 0))
        places = ", ".join(
            " ".join(filter(None, (row["where"], row["op"], row["what"], f"{row['calls']}×")))
            for row in rows[:PLACES]
        )
        more = tell(", {number} per step", number=f"{in_steps:g}") if stepped else ""
        lines.append("  " + tell(said, number=number, more=more, places=places))
    return lines
