"""Findings as CSV, one row each: for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from joymigrate.model import Finding, Skipped
from joymigrate.report.result import ScanResult
from joymigrate.rewrite.outcome import RewriteOutcome, why_left

COLUMNS = (
    "path", "cell", "line", "column", "end_line", "end_column", "rule", "name", "tier", "area",
    "group", "before", "after", "message", "reason", "minutes", "grade",
)  # fmt: skip


def render(result: ScanResult) -> str:
    """A header and one row per finding, and per file that was not read."""
    say, path = result.say, result.display_path
    rows = [finding_row(each, path(each.path), say) for each in result.scan.findings]
    rows += [skipped_row(each, path(each.path), say) for each in result.scan.skipped]
    return table(COLUMNS, rows)


def of_rewrite(outcome: RewriteOutcome, say: Callable[[str], str], *, wrote: bool) -> str:
    """One row per site of a rewrite: what was (or would be) written, what stays and why."""
    done = "written" if wrote else "would be written"
    rows = [[done, *finding_row(each, each.path, say)] for each in outcome.edits()]
    for each in outcome.left():
        rows.append(["left", *finding_row(replace(each, reason=why_left(each)), each.path, say)])
    rows += [["not read", *skipped_row(each, each.path, say)] for each in outcome.scan.skipped]
    return table(("status", *COLUMNS), rows)


def finding_row(each: Finding, path: str, say: Callable[[str], str]) -> list[object]:
    """The cells of one finding."""
    return [
        safe(path), "" if each.cell is None else each.cell, each.line, each.column, each.end_line,
        each.end_column, each.rule, each.name, each.tier.value, each.area, safe(each.group or ""),
        safe(each.before), safe(each.after or ""), safe(say(each.message)),
        safe(say(each.reason or "")), each.weight, "documented",
    ]  # fmt: skip


def skipped_row(each: Skipped, path: str, say: Callable[[str], str]) -> list[object]:
    """The cells of a file that was not read."""
    cells: dict[str, object] = dict.fromkeys(COLUMNS, "")
    cells |= {"path": safe(path), "tier": "not read", "reason": safe(say(each.reason))}
    return list(cells.values())


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A header and rows as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def safe(text: str) -> str:
    """Text that a spreadsheet takes for text: no cell begins as a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
