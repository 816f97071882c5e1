"""Findings as CSV, one row each: for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io

from joymigrate.report.result import Result

COLUMNS = (
    "path", "cell", "line", "column", "end_line", "end_column", "rule", "name", "tier", "area",
    "group", "before", "after", "message", "reason", "minutes",
)  # fmt: skip


def render(result: Result) -> str:
    """A header and one row per finding, and per file that was not read."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for each in result.scan.findings:
        writer.writerow([
            result.display_path(each.path), "" if each.cell is None else each.cell, each.line,
            each.column, each.end_line, each.end_column, each.rule, each.name, each.tier.value,
            each.area, each.group or "", safe(each.before), safe(each.after or ""),
            safe(result.say(each.message)), safe(result.say(each.reason or "")), each.weight,
        ])  # fmt: skip
    for skip in result.scan.skipped:
        row = dict.fromkeys(COLUMNS, "")
        row |= {"path": result.display_path(skip.path), "tier": "not read"}
        row["reason"] = safe(result.say(skip.reason))
        writer.writerow(row.values())
    return text.getvalue()


def safe(text: str) -> str:
    """Text that a spreadsheet takes for text: no cell begins as a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
