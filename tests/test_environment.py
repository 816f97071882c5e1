"""Every environment variable of ours stands in one table, and no table names one that is gone."""

from __future__ import annotations

import re
from pathlib import Path

import joymigrate

PACKAGE = Path(joymigrate.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "environment.md"
NAME = re.compile(r"JOYMIGRATE_[A-Z0-9]+(?:_[A-Z0-9]+)*")
SOURCES = {".py", ".c", ".cpp", ".h", ".yaml"}


def test_the_page_names_every_variable_and_no_other() -> None:
    used: set[str] = set()
    for path in PACKAGE.rglob("*"):
        if path.suffix in SOURCES and "_rules" not in path.parts:
            used |= set(NAME.findall(path.read_text(encoding="utf-8", errors="replace")))
    assert used, "the search finds nothing"
    rows = re.findall(r"^\| `(JOYMIGRATE_\w+)` \| \S", PAGE.read_text(encoding="utf-8"), re.M)
    assert len(rows) == len(set(rows))
    assert set(rows) == used
