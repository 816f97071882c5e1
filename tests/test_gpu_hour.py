"""benchmarks/gpu_hour.sh on a machine without a card: what is skipped, what runs, what fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "gpu_hour.sh"


def run_hour(folder: Path, *parts: str, **settings: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the row of each part."""
    environment = {**os.environ, "PYTHON": sys.executable, "OUT": str(folder), **settings}
    done = subprocess.run(
        ["bash", str(SCRIPT), *parts], env=environment, capture_output=True, text=True, timeout=500
    )
    page = (folder / "hour.md").read_text(encoding="utf-8")
    assert page in done.stdout
    told = json.loads((folder / "hour.json").read_text(encoding="utf-8"))
    assert all(f"| {row['part']} | {row['result']} |" in page for row in told["parts"])
    return done.returncode, {row["part"]: row for row in told["parts"]}


def test_without_a_card_every_part_says_why_it_was_skipped(tmp_path: Path) -> None:
    code, rows = run_hour(tmp_path, DEVICE="mps" if sys.platform != "darwin" else "cuda")
    assert code == 0
    assert len(rows) > 10
    assert {row["result"] for row in rows.values()} == {"skipped"}
    assert "is_available() is false" in rows["gpt"]["last_line"]


def test_a_part_that_fails_is_told_and_the_next_one_starts(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *float16*) echo out of memory; exit 3;; "-m joymigrate"*) '
        f'echo all well; exit 0;; esac\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    out = tmp_path / "out"
    code, rows = run_hour(
        out, "check-float16", "check-float32", "coverage", DEVICE="cpu", PYTHON=str(python)
    )
    assert code == 1
    told = {name: (row["result"], row["last_line"]) for name, row in rows.items()}
    assert told == {
        "check-float32": ("passed", "all well"),
        "check-float16": ("failed (3)", "out of memory"),
        "coverage": ("skipped", f"{out}/step.jsonl is not there"),
    }


@pytest.mark.slow
def test_the_small_parts_run_on_a_cpu(tmp_path: Path) -> None:
    names = ("gpt", "record", "coverage", "baseline")
    code, rows = run_hour(tmp_path, *names, DEVICE="cpu", SIZE="small")
    assert code == 0
    assert {name: row["result"] for name, row in rows.items()} == dict.fromkeys(names, "passed")
