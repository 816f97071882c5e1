"""Replayed operators: one row per operator and dtype, with the worst of its cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from joymigrate.language import tell
from joymigrate.report.html import page
from joymigrate.report.html.page import Html, Section
from joymigrate.report.verdict_parts import VerdictPart, table
from joymigrate.report.verdict_words import SEVERITY, STATUS_TONES, figure


@dataclass(frozen=True, slots=True)
class Operators(VerdictPart):
    """The object `operators` of a verdict."""

    KEY: ClassVar[str] = "operators"
    TITLE: ClassVar[str] = "Operators"

    operators: Mapping[str, Any]

    def groups(self) -> list[tuple[str, str, Mapping[str, Any], int, int]]:
        """(operator, dtype, worst row, number of cases, calls), the most severe first."""
        found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for row in self.operators["rows"]:
            name = f"{row['op']}.{row['overload']}" if row["overload"] else row["op"]
            found.setdefault((name, row["dtype"]), []).append(row)
        groups = []
        for (name, dtype), rows in found.items():
            worst = min(rows, key=lambda row: SEVERITY.index(row["status"]))
            calls = sum(
                r["calls"] for r in rows if r["case"] == "recorded" and r["phase"] == "forward"
            )
            groups.append((name, dtype, worst, len(rows), calls))
        return sorted(groups, key=lambda group: SEVERITY.index(group[2]["status"]))

    def whole(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows as text."""
        head = ["status", "operator", "dtype", "grade", "cases", "calls", "worst case", "value"]
        head += ["limit", "why"]
        rows = [
            [
                worst["status"],
                name,
                dtype,
                worst.get("level", ""),
                str(cases),
                f"{calls:,}",
                f"{worst['case']} {worst['phase']} {worst['shapes']}",
                f"{worst['metric']} {figure(worst.get('value'))}",
                figure(worst.get("limit")),
                worst.get("reason") or "",
            ]
            for name, dtype, worst, cases, calls in self.groups()
        ]
        return head, rows

    def text(self) -> list[str]:
        """A count: the records below name what failed."""
        groups = self.groups()
        operators = len({name for name, *_ in groups})
        return [
            tell(
                "{operators} operators in {groups} dtypes, {rows} cases",
                operators=f"{operators:,}",
                groups=f"{len(groups):,}",
                rows=f"{len(self.operators['rows']):,}",
            )
        ]

    def markdown(self) -> list[str]:
        """A table of what is not simply passed, and the number of the rest."""
        head, rows = self.whole()
        odd = [row for row in rows if row[0] not in ("PASS", "IDENTICAL")]
        lines = ["## " + tell("Operators"), "", *self.text(), ""]
        return [*lines, *table(head, odd), ""] if odd else lines

    def sections(self) -> list[Section]:
        """The whole table; by place in the program where it is known."""
        head, rows = self.whole()
        shown: Sequence[Sequence[object]] = [
            [page.badge(row[0], STATUS_TONES[row[0]]), page.code(f"`{row[1]}`"), *row[2:]]
            for row in rows
        ]
        body = Html(page.table(head, shown, right=(4, 5)))
        return [Section("operators", "Operators", body, len(rows))]
