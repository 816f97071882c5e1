"""Operators and their implementations: the list, a check, a benchmark, as text and plain data."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from joymigrate.evidence import count_grades, grade_line
from joymigrate.language import columns
from joymigrate.report.fields import fields
from joymigrate.run.kernels import Kernel
from joymigrate.run.kernels.bench import Timing, is_simulated
from joymigrate.run.kernels.check import CheckRow
from joymigrate.run.kernels.operator import Call, Implementation
from joymigrate.run.kernels.select import why_not

SCHEMA = "joymigrate.kernels/1"
BENCH_SCHEMA = "joymigrate.kernels-bench/1"


def listing(kernels: Sequence[Kernel], chip: str, device: str) -> list[dict[str, Any]]:
    """Every implementation, whether it can run on this device, and why not."""
    rows = []
    for kernel in kernels:
        for item in kernel.implementations:
            reason = unusable(item, chip, device)
            rows.append(
                {
                    "op": kernel.name,
                    "implementation": item.name,
                    "status": "available" if reason is None else "unavailable",
                    "reason": reason,
                    **fields(item, "chip dtypes priority calls source note"),
                    "backward": item.backward and kernel.operator.differentiable,
                }
            )
    return rows


def unusable(item: Implementation, chip: str, device: str) -> str | None:
    """Why an implementation takes none of its dtypes on this device, whatever the shapes are."""
    anywhere = replace(item, when=None)
    reasons = [why_not(anywhere, Call(chip, device, dtype, ())) for dtype in item.dtypes]
    return None if None in reasons else reasons[0]


def operators(kernels: Sequence[Kernel]) -> list[dict[str, Any]]:
    """What each operator computes."""
    return [
        {"op": k.name, "signature": k.operator.signature, "formula": k.operator.formula}
        for k in kernels
    ]


def list_text(kernels: Sequence[Kernel], rows: Sequence[dict[str, Any]]) -> str:
    """The list, an operator a paragraph."""
    lines = []
    for kernel in kernels:
        lines += [kernel.operator.signature, f"  {kernel.operator.formula}"]
        for row in (row for row in rows if row["op"] == kernel.name):
            mark = "+" if row["reason"] is None else "-"
            why = f"  ({row['reason']})" if row["reason"] else ""
            calls = f"  {row['calls']}" if row["calls"] else ""
            lines.append(f"  {mark} {row['implementation']}{calls}{why}")
        lines.append("")
    lines += [grade_line(count_grades(list_grades(rows))), ""]
    return "\n".join(lines)


def list_grades(rows: Sequence[dict[str, Any]]) -> list[str]:
    """How well it is known that a chip runs an implementation: by its package's documents."""
    return ["documented" for row in rows if row["chip"]]


def check_document(rows: Sequence[CheckRow], about: dict[str, Any]) -> dict[str, Any]:
    """The contract of `kernels check --format json`."""
    grades = list(filter(None, map(grade_of, rows)))
    return {
        "schema": SCHEMA, **about, "grades": count_grades(grades),
        "kernels": [{**asdict(row), "grade": grade_of(row)} for row in rows],
    }  # fmt: skip


def grade_of(row: CheckRow) -> str | None:
    """How well a result is known of the chip; None for what did not run, or ran on the CPU."""
    if row.status == "skipped" or row.device == "cpu":
        return None
    return "rehearsed" if is_simulated(row.device) else "measured"


def check_text(rows: Sequence[CheckRow]) -> str:
    """One line a result: what was checked with its error and limit, what was skipped and why."""
    cells = [("OP", "IMPLEMENTATION", "DTYPE", "PHASE", "STATUS", "ERROR", "LIMIT", "CASES")]
    notes = []
    for row in rows:
        if row.status == "skipped":
            where = " ".join(filter(None, (row.dtype, row.phase)))
            what = f"{row.op} {row.implementation} {where}".rstrip()
            notes.append(f"skipped {what}: {row.reason}")
            continue
        error = "-" if row.max_error is None else f"{row.max_error:.1e}"
        names = (row.op, row.implementation, row.dtype or "-", row.phase or "-", row.status)
        cells.append((*names, error, f"{row.limit:.0e}", str(row.cases)))
        if row.status == "fail":
            notes.insert(0, f"FAILED {row.op} {row.implementation} {row.dtype}: {row.reason}")
    counts = Counter(row.status for row in rows)
    total = ", ".join(f"{counts.get(name, 0)} {name}" for name in ("pass", "fail", "skipped"))
    grades = list(filter(None, map(grade_of, rows)))
    last = [grade_line(count_grades(grades))] if grades else []
    return "\n".join([*columns(cells), "", *notes, total, *last, ""])


def bench_document(timings: Sequence[Timing], about: dict[str, Any]) -> dict[str, Any]:
    """A benchmark as plain data."""
    rows = []
    for timing in timings:
        row = asdict(timing)
        call = row.pop("call")
        rows.append({**row, "shape": list(call["shape"]), "variant": call["variant"]})
    return {"schema": BENCH_SCHEMA, **about, "rows": rows, "summary": summary(timings)}


def summary(timings: Sequence[Timing]) -> dict[str, Any]:
    """How the choices do against the reference."""
    chosen = [timing.speed_up.get(timing.chosen, 1.0) for timing in timings]
    if not chosen:
        return {"rows": 0}
    mean = statistics.geometric_mean(chosen)
    slower = [t for t, gain in zip(timings, chosen, strict=True) if gain < 1 / 1.02]
    return {
        "rows": len(chosen),
        "speed_up_geometric_mean": mean,
        "slowest_choice": min(chosen),
        "slower_than_reference": len(slower),
    }


def bench_text(timings: Sequence[Timing], about: dict[str, Any]) -> str:
    """A line a case: times in microseconds, the speed-up over the reference in brackets."""
    cells = [("OP", "CASE", "DTYPE", "PHASE", "CHOSEN", "US (SPEED-UP)")]
    for timing in timings:
        times = "  ".join(cell(timing, name) for name in timing.times_us)
        head = (timing.op, timing.case, timing.dtype, timing.phase, timing.chosen)
        cells.append((*head, times))
    total = summary(timings)
    lines = [*columns(cells), ""]
    if total["rows"]:
        lines.append(
            f"{total['rows']} cases on {about['card']}: the chosen ones are "
            f"{total['speed_up_geometric_mean']:.2f} x the reference (geometric mean), "
            f"{total['slower_than_reference']} more than 2 % slower than it"
        )
    return "\n".join([*lines, ""])


def cell(timing: Timing, name: str) -> str:
    """One implementation's time."""
    text = f"{name} {timing.times_us[name]:.1f} ({timing.speed_up[name]:.2f})"
    if name in timing.peak_pct:
        text += f" {timing.peak_pct[name]:.0f} % of peak"
    return text
