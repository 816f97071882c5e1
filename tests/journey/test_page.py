"""The page of a real journey: every figure is linked to evidence that says the same."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from tests.language.test_reports import english
from tests.report.journey_walk import walk, wrong

EXAMPLES = Path(__file__).parents[2] / "examples"
needs_chip = pytest.mark.skipif(
    PathFinder.find_spec("torch_npu") is None, reason="torch_npu is not installed"
)


@needs_chip
@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize(
    ("name", "entry", "links"),
    [
        ("ctr", "python train.py --steps 4 --batch-size 16", 300),
        ("classifier", "python train.py --steps 1 --batch-size 4", 100),  # a gate stops it
    ],
)
def test_the_page_of_a_journey_shows_what_its_evidence_says(
    name: str, entry: str, links: int, tmp_path: Path
) -> None:
    project = tmp_path / name
    shutil.copytree(EXAMPLES / name, project)
    (project / "pyproject.toml").write_text("[tool.joymigrate]\n")
    elsewhere = tmp_path / "out" / "page.html"
    elsewhere.parent.mkdir()
    words = ["--entry", entry, "-q", "--lang", "zh", "--report", str(elsewhere)]
    done = subprocess.run(
        [sys.executable, "-m", "joymigrate", "migrate", str(project), *words],
        capture_output=True,
        text=True,
    )
    assert elsewhere.is_file(), done.stdout + done.stderr
    assert wrong(elsewhere) == []
    assert len(walk(elsewhere).links) > links
    assert elsewhere.stat().st_size < 1_500_000
    assert english(elsewhere.read_text(encoding="utf-8")) == []
