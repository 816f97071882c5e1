"""What users of a chip reported of its operators: a list that says otherwise names them."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from pathlib import Path

from joymigrate.chips.names import version_key


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """One public report. `differs` says why the chip's list says otherwise; "" where it agrees."""

    op: str
    version: str  # of the chip's package; "" where the report does not say it
    said: str  # a status
    source: str
    date: str
    grade: str
    differs: str

    @property
    def text(self) -> str:
        """What is said beside the list's own statement."""
        return f"reported as {self.said} on {self.date} ({self.source}): {self.differs}"


@functools.cache
def read_reports(path: Path) -> tuple[OperatorReport, ...]:
    """The reports of a file, one a row."""
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(OperatorReport(**row) for row in csv.DictReader(file))


def differing(path: Path | None, op: str, version: str) -> str:
    """What reports say of an operator and version against the list, or "" where nothing does."""
    found = [
        one.text for one in (read_reports(path) if path else ())
        if one.differs and one.op == op
        and (not one.version or version_key(one.version) == version_key(version))
    ]  # fmt: skip
    return "; ".join(found)
