"""The board's rows: a file with one line of JSON each, written atomically: a shard can go on.

The newest try and the first one; a run on another release writes to a folder of its own, which
`report --against` reads and nobody keeps.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.board.outcome import Observed, Outcome, judge
from benchmarks.board.programs import Program
from joymigrate.run.rehearse import releases

HERE = Path(__file__).parent
RESULTS = HERE / "rows"
SCHEMA = "joymigrate.board-row/1"


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Rows by program; none where the folder is not there.

    Raises ValueError for a file that is not a row.
    """
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            row = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is not JSON ({error}); delete it to run it again") from error
        if row.get("schema") != SCHEMA:
            raise ValueError(f"{path} has schema {row.get('schema')!r}, not {SCHEMA}")
        found[row["name"]] = row
    return found


def save(folder: Path, row: Mapping[str, Any]) -> None:
    """Write one row; a reader sees the old one or the new one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{row['name']}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(part, path)


def made(
    program: Program,
    seen: Observed,
    figures: Mapping[str, Any],
    *,
    before: Mapping[str, Any] | None,
    day: str,
) -> dict[str, Any]:
    """A row. What the first try gave is kept from the row before.

    A try keeps what was observed, so that `judged` can hold an old row against today's rules.
    """
    now = {"date": day, "tool": commit(), "with": versions(), "seen": asdict(seen)}
    return {
        "schema": SCHEMA,
        "name": program.name,
        "repository": program.repository,
        "commit": program.commit,
        "licence": program.licence,
        "family": program.family,
        "command": program.command,
        "baseline": program.baseline or program.command,
        "chosen_before": program.chosen_before,
        "first": dict(before["first"]) if before else now,
        "final": now,
        "tries": (int(before["tries"]) if before else 0) + 1,
        **figures,
    }


def versions() -> dict[str, str]:
    """The releases of torch and of the chip's package that rehearsals run with; none of what is
    not installed."""
    found = {}
    with suppress(PackageNotFoundError):
        found["torch"] = version("torch").partition("+")[0]
    chosen = releases.choose()
    package = chosen.version if chosen else releases.installed_version()
    if package:
        found[releases.PACKAGE] = package
    return found


def judged(row: Mapping[str, Any], which: str) -> tuple[Outcome, str]:
    """The outcome and cause of a row's "first" or "final" try."""
    return judge(Observed.read(row[which]["seen"]))


def commit() -> str:
    """The commit of joymigrate that ran; empty without git."""
    done = subprocess.run(
        ["git", "rev-parse", "--short=10", "HEAD"], cwd=HERE, capture_output=True, text=True
    )
    return done.stdout.strip()
