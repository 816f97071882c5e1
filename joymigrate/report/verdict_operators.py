"""Replayed operators: one row per operator and dtype, with the worst of its cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from joymigrate.language import tell
from joymigrate.report.blocks import Badge, Cell, Chapter, Code, TableBlock
from joymigrate.report.verdict_parts import VerdictPart
from joymigrate.report.verdict_words import SEVERITY, STATUS_TONES, figure

HEAD = (
    "status", "operator", "dtype", "grade", "cases", "calls", "worst case", "value", "limit", "why",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReplayedOperatorTable(VerdictPart):
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

    def chapters(self) -> list[Chapter]:
        """The whole table; by place in the program where it is known."""
        rows: list[list[Cell]] = [
            [
                Badge(worst["status"], STATUS_TONES[worst["status"]]),
                Code(name),
                dtype,
                worst.get("level", ""),
                cases,
                calls,
                f"{worst['case']} {worst['phase']} {worst['shapes']}",
                f"{worst['metric']} {figure(worst.get('value'))}",
                figure(worst.get("limit")),
                worst.get("reason") or "",
            ]
            for name, dtype, worst, cases, calls in self.groups()
        ]
        return [Chapter("operators", "Operators", [TableBlock(HEAD, rows)], len(rows))]
