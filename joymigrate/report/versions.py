"""Which versions of a chip's software go together: as text, JSON and a page."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

from joymigrate.chips import Chip
from joymigrate.chips.versions import (
    AdapterLine,
    AddonLine,
    Companion,
    DriverLine,
    FirmwareLine,
    ImageLine,
    Line,
    Matrix,
    NumberedLine,
    PackageRelease,
    PythonLine,
    WheelLine,
)
from joymigrate.errors import JoyError

SCHEMA = "joymigrate.version-matrix/1"
TITLES = {
    "release": "Releases of the chip's package",
    "adapter": "SDKs that a release works with",
    "driver": "Drivers that an SDK works with",
    "firmware": "The firmware that comes with a driver",
    "addon": "Additions that have the SDK's own number",
    "numbered": "Packages that are counted beside torch",
    "wheel": "What a wheel asks pip for",
    "python": "Pythons with a wheel",
    "image": "Container images that were seen",
}


def rows(matrix: Matrix) -> Iterator[tuple[str, str, str, Line]]:
    """Every line as kind, name and what it goes with."""
    names = {id(one): name for name, group in matrix.companions.items() for one in group}
    for line in matrix.lines():
        if isinstance(line, Companion):
            given = ", ".join(f"{k} {v}" for k, v in line.parts().items() if k != "version")
            yield names[id(line)], line.version, given, line
        else:
            yield (*words(line), line)


def words(line: Line) -> tuple[str, str, str]:
    """Kind, name, and what it goes with."""
    if isinstance(line, PackageRelease):
        parts = [f"torch {line.torch}", line.sdk, f"triton {line.triton}" if line.triton else ""]
        adapter = f"the vendor's {line.adapter}" if line.adapter else ""
        return "release", line.package, ", ".join(filter(None, (*parts, adapter)))
    if isinstance(line, AdapterLine):
        return "adapter", line.adapter, "SDK " + ", ".join(line.sdk)
    if isinstance(line, DriverLine):
        refused = f"; refused: {', '.join(line.refused)}" if line.refused else ""
        return "driver", line.sdk, ", ".join(line.driver) + refused
    if isinstance(line, FirmwareLine):
        return "firmware", line.driver, ", ".join(line.firmware)
    if isinstance(line, AddonLine):
        return "addon", line.addon, "the SDK of the same number"
    if isinstance(line, NumberedLine):
        return "numbered", f"{line.package} 0.(N + {line.ahead}).P", f"torch 2.N.P ({line.torch})"
    if isinstance(line, WheelLine):
        return "wheel", f"{line.releases} ({line.machine})", line.requires
    if isinstance(line, ImageLine):
        return "image", line.sdk, f"{', '.join(line.models)}; Python {', '.join(line.pythons)}"
    assert isinstance(line, PythonLine)
    return "python", line.python, f"releases {line.releases}"


def as_json(chip: Chip, today: datetime.date) -> dict[str, Any]:
    """The document `version-matrix/1`."""
    matrix = require_matrix(chip)
    lines = [
        {"kind": kind, "name": name, "goes_with": text, "source": line.source, "date": line.date,
         "stale": matrix.is_stale(line, today)}
        for kind, name, text, line in rows(matrix)
    ]  # fmt: skip
    return {
        "schema": SCHEMA,
        "chip": chip.name,
        "grade": "documented",
        "default": chip.default_version,
        "lines": lines,
        "stale": sum(bool(line["stale"]) for line in lines),
    }


def table(chip: Chip, today: datetime.date) -> str:
    """All lines by kind; those that are too old are marked and counted."""
    matrix = require_matrix(chip)
    text, kind, stale = [f"{chip.title}: assumed version {chip.default_version}"], "", 0
    for one, name, goes_with, line in rows(matrix):
        if one != kind:
            kind = one
            text += ["", TITLES.get(kind, kind)]
        old = matrix.is_stale(line, today)
        stale += old
        mark = " (old)" if old else ""
        text.append(f"  {name:<20} {goes_with} · {line.source}, {line.date}{mark}")
    text += ["", "Grade of every line: documented."]
    if stale:
        text += ["", f"{stale} lines were read more than {matrix.stale_days} days ago: read anew."]
    return "\n".join(text) + "\n"


def page(chip: Chip) -> str:
    """The page of all lines: it does not depend on the day."""
    matrix = require_matrix(chip)
    text = [
        "# Versions that go together",
        "",
        f"From `rules/{chip.name}/versions.yaml`; `joymigrate doctor`, rehearsals, the advice on",
        "requirements, coverage and `render` read the same file. A pair that is not listed is",
        f"unproven, not refused. A line read more than {matrix.stale_days} days ago warns.",
        "Grade of every line: documented.",
    ]
    kind = ""
    for one, name, goes_with, line in rows(matrix):
        if one != kind:
            kind = one
            text += ["", f"## {TITLES.get(kind, kind)}", "", "| | goes with | source | read |"]
            text += ["|---|---|---|---|"]
        text.append(f"| {name} | {goes_with} | {line.source} | {line.date} |")
    return "\n".join(text) + "\n"


def require_matrix(chip: Chip) -> Matrix:
    """The chip's matrix; JoyError where it has none."""
    matrix = chip.matrix()
    if not matrix.releases:
        raise JoyError(f"no versions.yaml for {chip.title}", where=str(chip.folder))
    return matrix
