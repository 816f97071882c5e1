"""What people reported of a chip: calls that it takes and answers wrongly, or fails at while it
runs. The rows are `rules/<chip>/kernels/reported.yaml`; none was measured by us."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from joymigrate.chips import rules_root
from joymigrate.errors import JoyError
from joymigrate.run.rehearse.constraints import (
    FUNCTIONS,
    Call,
    ShapeRelation,
    evaluate,
    read_relation,
)
from joymigrate.run.rehearse.settings import RehearsalSettings
from joymigrate.schema import read_yaml

FILE = Path("kernels") / "reported.yaml"


@dataclass(frozen=True, slots=True)
class Reported:
    """One row. With `numbers` it holds where a result is not finite and the arguments are."""

    name: str
    when: ShapeRelation | None
    without: tuple[str, ...]
    models: tuple[str, ...]
    cann: SpecifierSet
    numbers: bool
    problem: str
    action: str
    source: str
    place: str = ""  # what a row of a whole job points at
    versions: str = ""  # of CANN that it was reported of, where the rehearsed one is another


class Reports:
    """The rows that speak of one model and one CANN, by operator."""

    def __init__(self, settings: RehearsalSettings) -> None:
        self.rows: dict[str, list[Reported]] = {}
        for operator, row in read_reports(rules_root() / settings.chip / FILE):
            here = not row.models or settings.soc.startswith(row.models)
            told = within(row.cann, settings.cann)
            if here and (told or not settings.cann_fits):  # of other versions where none was asked
                versions = "" if told else str(row.cann).replace(".dev0", "")
                self.rows.setdefault(operator, []).append(replace(row, versions=versions))

    def of_call(self, operator: str, call: Call) -> Iterator[Reported]:
        """What was reported of a call; `operator` without its overload."""
        values = {**FUNCTIONS, **call}
        for row in self.rows.get(operator, ()):
            left_out = all(call.get(name) is None for name in row.without)
            asked = row.when is None or bool(evaluate(row.when, values))
            if left_out and asked and not row.numbers:
                yield row

    def of_numbers(self, operator: str) -> Reported | None:
        """What was reported of a result that is not finite."""
        return next((row for row in self.rows.get(operator, ()) if row.numbers), None)


def within(wanted: SpecifierSet, cann: str) -> bool:
    """Whether a version of the chip's software is one that a row speaks of."""
    try:
        return wanted.contains(Version(cann), prereleases=True)
    except InvalidVersion:
        return not str(wanted)  # nobody knows it: only what speaks of all versions


@cache
def read_reports(path: Path) -> tuple[tuple[str, Reported], ...]:
    """The rows by operator; none where the chip has no such file."""
    if not path.is_file():
        return ()
    pairs: list[tuple[str, Reported]] = []
    for raw in read_yaml(path)["rows"]:
        row = read_report(raw, f"{path}: {raw.get('name')}")
        pairs += [(operator, row) for operator in raw["operators"].split()]
    return tuple(pairs)


def read_report(raw: Mapping[str, Any], where: str) -> Reported:
    """One row, checked."""
    for key in ("name", "operators", "problem", "action", "source"):
        if not raw.get(key):
            raise JoyError(f"a reported row needs `{key}`", where=where)
    line = {"want": raw.get("when"), "source": raw["source"], "grade": "reported"}
    return Reported(
        str(raw["name"]),
        read_relation(line, where) if raw.get("when") else None,
        tuple(str(raw.get("without", "")).split()),
        tuple(str(raw.get("models", "")).split()),
        SpecifierSet(str(raw.get("cann", ""))),
        bool(raw.get("numbers", False)),
        str(raw["problem"]),
        str(raw["action"]),
        str(raw["source"]),
        str(raw.get("place", "")),
    )
