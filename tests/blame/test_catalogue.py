"""Stops of sixty kinds: whose each is, and the line that raised, as a reader of them says."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import joymigrate
from joymigrate.blame.exceptions import from_log
from joymigrate.blame.judge import judge
from joymigrate.blame.program import Program
from joymigrate.blame.stop import OriginSite, Stop, StopEvidence
from joymigrate.blame.vendor import load

HERE = Path(__file__).parent
VERSIONS = {"torch-npu": "2.13.0", "torch": "2.13.0", "accelerate": "1.15.0"}
PLACES = re.compile(r"(?<![\w/])([PVJ])/")


@cache
def rows() -> dict[str, dict[str, Any]]:
    found = yaml.safe_load((HERE / "catalogue.yaml").read_text(encoding="utf-8"))
    return {row["name"]: row for row in found}


def logged(text: str, project: Path) -> str:
    """A log with the folders of this machine."""
    folders = {
        "P": str(project),
        "V": "/opt/venv/lib/python3.11/site-packages",
        "J": str(Path(joymigrate.__file__).parent),
    }
    return PLACES.sub(lambda found: f"{folders[found[1]]}/", text)


def judged(row: dict[str, Any], project: Path) -> Stop:
    text = logged(row["log"], project)
    on_chip = row.get("ran", "chip") == "chip"
    said = row.get("baseline", "well" if on_chip else "none")
    before = None if said == "none" else () if said == "well" else from_log(f"{TRACE}{said}\n")
    return judge(
        StopEvidence(
            Program(project),
            from_log(text),
            row.get("exit", 1),
            text.strip().splitlines()[-1],
            on_chip,
            before,
            {file: frozenset(lines) for file, lines in row.get("wrote", {}).items()},
            tuple(OriginSite(where, *site) for where, site in row.get("left", {}).items()),
            refusals=row.get("refusals", ()),
            versions=VERSIONS,
            own=frozenset(row.get("own", ())),
            vendor=load("ascend"),
            rewritten=row.get("rewritten", True),
        )
    )


TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    x\n'


@pytest.mark.parametrize("name", rows())
def test_a_stop_has_its_owner_and_its_line(name: str, tmp_path: Path) -> None:
    row = rows()[name]
    stop = judged(row, tmp_path)
    assert (stop.whose.value, stop.line or None) == (row["whose"], row["line"])
    assert stop.message
    assert row.get("says", "") in stop.how_known
    assert stop.next
    assert row.get("next", "") in stop.next
