"""What the stages of a comparison found, before it is put together. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from joymigrate.verify.judge import Judge
from joymigrate.verify.model import (
    Cause,
    Difference,
    Outcome,
    StageResult,
)
from joymigrate.verify.watch_record import RunRows


@dataclass(slots=True)
class Findings:
    """What the stages found, before it is put together."""

    rows: list[Difference] = field(default_factory=list)
    stages: list[StageResult] = field(default_factory=list)
    causes: dict[int, Cause] = field(default_factory=dict)  # by id(row)
    lines: dict[int, tuple[str, str]] = field(default_factory=dict)  # of both sides, by id(row)
    # rows that depart where a choice that rounding flips may be why
    doubts: list[Difference] = field(default_factory=list)
    replaced: dict[str, tuple[str, str]] = field(default_factory=dict)  # module → its two classes
    depth: list[dict[str, Any]] = field(default_factory=list)
    # of all processes but the first: what was judged of the whole run, by process, and (process,
    # what is not covered)
    watched: dict[int, tuple[RunRows, Judge]] = field(default_factory=dict)
    elsewhere: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def explained_by(self, row: Difference, cause: Cause | None) -> None:
        """Note what explains a failed row."""
        if cause is not None:
            self.causes[id(row)] = cause


def stage(name: str, rows: Sequence[Difference], *, reason: str | None = None) -> StageResult:
    """The outcome of one stage by its rows."""
    counts = Counter(row.status.value for row in rows)
    compared = sum(1 for row in rows if row.status.compared)
    if not rows:
        return StageResult(name, Outcome.SKIPPED, reason=reason or "nothing to compare")
    failed = any(row.status.failed for row in rows)
    outcome = Outcome.FAIL if failed else Outcome.PASS if compared else Outcome.INCONCLUSIVE
    if outcome is Outcome.INCONCLUSIVE and reason is None:
        reason = Counter(row.reason for row in rows).most_common(1)[0][0]
    return StageResult(name, outcome, compared, len(rows), dict(counts), reason)
