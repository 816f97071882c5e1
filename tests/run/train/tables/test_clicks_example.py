"""examples/clicks: two lines keep a table off the card, and a Redis stream goes on teaching it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run.rehearse.conftest import Run, rehearse  # noqa: F401
from tests.run.train.tables.test_stores import Server, server  # noqa: F401

pytest.importorskip("redis")
FOLDER = Path(__file__).parents[4] / "examples" / "clicks"


def python(*words: object) -> str:
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=FOLDER, env=environment, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_it_goes_on_behind_the_last_click_that_it_learned(server: Server, tmp_path: Path) -> None:  # noqa: F811
    first = json.loads(python("train.py", "--steps", 15, "--out", tmp_path))
    known = first["rows_learned"]["user"]
    again = ("train.py", "--resume", "--stream", server.url, "--idle", 0.5, "--out", tmp_path)
    for seed, clicks in ((2, 1500), (3, 700)):
        python("feed.py", server.url, "--clicks", clicks, "--seed", seed)
        report = json.loads(python(*again))
        assert report["samples"] == clicks  # each once
        assert report["rows_learned"]["user"] > known
        known = report["rows_learned"]["user"]
        assert report["losses"][-1] < first["losses"][0]
    assert json.loads((tmp_path / "report.json").read_text()) == report


@pytest.mark.compiler
@pytest.mark.slow
def test_on_the_chip_the_whole_table_does_not_fit_and_its_cache_does(
    rehearse: Run,  # noqa: F811
    tmp_path: Path,
) -> None:
    words = ("python", str(FOLDER / "train.py"), "--device", "npu:0", "--steps", "10")
    whole = rehearse(*words, "--whole", "--out", str(tmp_path / "a"), options=("--memory", "1GiB"))
    assert whole.code == 1
    assert "OutOfMemoryError" in whole.err
    cached = rehearse(*words, "--out", str(tmp_path / "b"), options=("--memory", "1GiB"))
    assert cached.code == 0, cached.err[-3000:]
    assert cached.report is not None
    assert cached.report["fallbacks"] == []
    assert json.loads((tmp_path / "b" / "report.json").read_text())["samples"] == 2560
