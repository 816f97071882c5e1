"""The example is a real program: it trains on the CPU, resumes, and runs on several processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
GPT = REPOSITORY / "examples" / "gpt"
SMALL = ["--device", "cpu", "--layers", "1", "--width", "32", "--batch-size", "4"]


def python(*arguments: object, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def losses(folder: Path) -> dict[int, float]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {row["step"]: row["loss"] for row in map(json.loads, lines)}


def test_the_gpt_trains_resumes_and_answers(tmp_path: Path) -> None:
    options = [*SMALL, "--out", tmp_path, "--log-every", 1, "--eval-sums", 2]
    out = python("train.py", *options, "--steps", 6, cwd=GPT)
    assert "accuracy" in out
    first = losses(tmp_path)
    assert list(first) == [0, 1, 2, 3, 4, 5]
    assert first[5] < first[0]
    python("train.py", *options, "--steps", 8, "--resume", cwd=GPT)
    assert list(losses(tmp_path)) == list(range(8))
    answer = python("sample.py", "1+2", "--checkpoint", tmp_path / "checkpoint.pt", cwd=GPT)
    assert answer.startswith("1+2 = ")


@pytest.mark.slow
def test_two_processes_train_together(tmp_path: Path) -> None:
    options = [*SMALL, "--out", tmp_path, "--steps", 3, "--log-every", 1, "--eval-sums", 0]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    python(*launcher, "train.py", *options, cwd=GPT)
    assert list(losses(tmp_path)) == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.compiler
def test_the_demo_passes_twice(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples")
    for _ in range(2):
        out = python("-m", "examples.demo", cwd=tmp_path)
        assert "steps passed." in out, out
    assert (tmp_path / "demo-out/report.html").stat().st_size > 10_000


def test_a_failing_step_is_shown_and_the_demo_fails(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples")
    (tmp_path / "demo-out").mkdir()
    (tmp_path / "demo-out" / "mine.txt").touch()
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "FAIL  copy the example" in done.stdout
    assert "was not made by the demo" in done.stdout
    assert (tmp_path / "demo-out" / "mine.txt").exists()
