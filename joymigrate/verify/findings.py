"""What a comparison of one process found: the rows of all stages, and what was not looked at.

A stage is a query over the rows: its outcome, its counts and what follows from what are told from
them, when all of them are there. No torch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from joymigrate.verify.growth import Growth
from joymigrate.verify.model import Difference, Outcome, RecordStatus, StageResult

STAGES = ("S1", "S3", "S4", "S4R", "S5", "S5W", "S5P")


def by_step(row: Difference) -> tuple[int, int]:
    """Where in the run a row is."""
    return row.step or 0, row.order


def follow(
    rows: Iterable[Difference],
    culprit: Difference,
    where: Callable[[Difference], bool] = lambda row: True,
) -> list[Difference]:
    """The rows with failures that follow from an earlier one as warnings."""
    return [
        replace(row, status=RecordStatus.WARN, consequence_of=culprit.module)
        if row.status.failed and row is not culprit and where(row)
        else row
        for row in rows
    ]


def keep_first(rows: list[Difference], key: Any = None) -> list[Difference]:
    """The first failure stays; later ones follow from it, as state, results and steps go on."""
    failed = [row for row in rows if row.status.failed]
    if not failed:
        return rows
    return follow(rows, min(failed, key=key) if key is not None else failed[0])


@dataclass(slots=True)
class Findings:
    """Rows, and what was not compared."""

    rows: list[Difference] = field(default_factory=list)
    counted: list[Difference] = field(default_factory=list)  # of other processes
    # rows that depart where a choice that rounding flips may be why
    doubts: list[Difference] = field(default_factory=list)
    uncovered: list[dict[str, Any]] = field(default_factory=list)
    # parts of the program (its loss, its run, what it prints) and how much of each there was
    compared: Counter[str] = field(default_factory=Counter)
    recorded: Counter[str] = field(default_factory=Counter)
    asked: list[str] = field(default_factory=lambda: list(STAGES))
    reasons: dict[str, Any] = field(default_factory=dict)  # by stage, beside what its rows say
    broken: dict[str, Any] = field(default_factory=dict)  # by stage: why it could not be judged
    details: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # by stage
    replaced: dict[str, tuple[str, str]] = field(default_factory=dict)  # module → its two classes
    depth: list[dict[str, Any]] = field(default_factory=list)
    short: Any = None  # words for a target that did less than the baseline
    made: Growth = field(default_factory=Growth)  # of what is made of numbers from outside
    chosen: float = math.inf  # step from which the program may have chosen otherwise by rounding
    flips: bool = False  # the baseline's own runs choose otherwise, too
    updates: set[int] = field(default_factory=set)  # steps whose updates S5 has judged
    end: float = math.inf  # step from which the sides do not compute the same thing any more

    @property
    def may_choose(self) -> bool:
        """Whether results may be others because the program chose otherwise: here, or in the
        baseline's own runs, of which two do not tell how far a choice moves them."""
        return self.flips or math.isfinite(self.chosen)

    def failed(self, *stages: str) -> Difference | None:
        """The first failure, of some stages alone."""
        rows = (row for row in self.rows if row.status.failed)
        return next((row for row in rows if not stages or row.stage in stages), None)

    def add(self, rows: list[Difference]) -> None:
        """Rows of a later stage: what fails there follows from an earlier failure."""
        first = self.failed()
        self.rows += follow(rows, first) if first is not None else rows

    def follow(
        self, culprit: Difference, where: Callable[[Difference], bool] = lambda row: True
    ) -> None:
        """Failures so far that follow from this one."""
        self.rows = follow(self.rows, culprit, where)

    def leave_out(self, what: Any, count: int, reason: Any) -> None:
        """Something that was not compared."""
        for known in self.uncovered:
            if known["what"] == what and known["reason"] == reason:
                known["count"] += count
                return
        self.uncovered.append({"what": what, "count": count, "reason": reason})

    def stage(self, name: str) -> StageResult:
        """The outcome of one stage by its rows."""
        rows = [row for row in self.rows if row.stage == name]
        counts = Counter(row.status.value for row in rows)
        held = rows + [row for row in self.counted if row.stage == name]
        compared, reason = sum(row.status.compared for row in held), self.reasons.get(name)
        outcome = Outcome.PASS if compared else Outcome.INCONCLUSIVE
        if any(row.status.failed for row in rows):
            outcome, reason = Outcome.FAIL, None
        elif name in self.broken:
            outcome, reason = Outcome.INCONCLUSIVE, self.broken[name]
        elif not held:
            outcome, reason = Outcome.SKIPPED, reason or "nothing to compare"
        elif outcome is Outcome.INCONCLUSIVE and reason is None:
            reason = Counter(row.reason for row in held).most_common(1)[0][0]
        details = self.details.get(name, {})
        return StageResult(name, outcome, compared, len(held), counts, reason, details=details)
