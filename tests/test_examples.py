"""The example is a real program: it trains on the CPU, resumes, and runs on several processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import run_program

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


@pytest.mark.slow
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
        assert "steps passed in" in out, out
    report = tmp_path / "demo-out" / "report.html"
    assert f"The report: {report}" in out
    # Its figures are those of the files that the steps wrote.
    journey = tmp_path / "demo-out" / "finetune_qwen" / ".joymigrate" / "journey"
    answer = json.loads((journey / "serve" / "answer.json").read_text())
    assert f"({answer['usage']['completion_tokens']} counted)" in out
    scan = json.loads((tmp_path / "demo-out" / "scan.json").read_text())["summary"]
    assert f"of which {scan['safe']} rewritten" in out
    for one in json.loads((journey / "journey.json").read_text())["journey"]:
        assert one["status"] == "done", one
        for name in one["evidence"]:
            assert (journey / name).is_file()
            assert f"/{name}" in report.read_text()


def test_a_failing_step_is_shown_and_the_demo_fails(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples")
    (tmp_path / "demo-out").mkdir()
    (tmp_path / "demo-out" / "mine.txt").touch()
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "FAIL  copy a GPT" in done.stdout
    assert "was not made by the demo" in done.stdout
    assert (tmp_path / "demo-out" / "mine.txt").exists()
    assert "steps failed" in done.stdout
    assert "no summary" in done.stdout  # nothing is shown that no step wrote


# What joymigrate must point out in each program: (rule, words of the line).
TRAPS = {
    "gpt": [("JM151", "allow_tf32")],
    "classifier": [("JM212", "channels_last"), ("JM210", "double()")],
    "finetune_qwen": [("JM107", "get_device_capability"), ("JM191", "flash-attn")],
    "ctr": [("JM211", "ranks[clicks > 0]")],
    "diffusion": [("JM202", "triton.jit"), ("JM211", "noisy[noisy > 4]")],
    "detector": [("JM206", "nms"), ("JM206", "roi_align"), ("JM211", "torch.nonzero")],
    "speech": [("JM211", "unique_consecutive")],
    "pretrain": [("JM180", "nvidia-smi"), ("JM120", "cuda"), ("JM190", "nvcr.io")],
}


@pytest.mark.parametrize("name", sorted(TRAPS))
def test_the_scan_points_at_what_is_planted(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(REPOSITORY / "examples" / name, folder)
    out = python(
        "-m", "joymigrate", "scan", folder, "--format", "json", "--exit-zero", cwd=tmp_path
    )
    found = [(f["rule"], f["before"]) for f in json.loads(out)["findings"]]
    for rule, words in TRAPS[name]:
        assert any(rule == r and words in before for r, before in found), (rule, words)


SHORT = {
    "classifier": ["--steps", "2", "--batch-size", "4"],
    "ctr": ["--steps", "2", "--batch-size", "16"],
    "diffusion": ["--steps", "2", "--batch-size", "4", "--samples", "0"],
    "detector": ["--steps", "2", "--images", "2"],
    "speech": ["--steps", "2", "--batch-size", "4"],
}


@pytest.mark.parametrize("name", sorted(SHORT))
def test_the_programs_train_on_a_cpu(name: str, tmp_path: Path) -> None:
    program = REPOSITORY / "examples" / name / "train.py"
    words = ("--device", "cpu", "--out", str(tmp_path), *SHORT[name])
    run_program(program, *words, cwd=program.parent)
    assert list(losses(tmp_path)) == [0, 1]


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize(
    ("name", "words", "completes"),
    [
        ("classifier", "channels_last is refused", False),
        ("diffusion", "it needs triton-ascend", False),
        ("ctr", "aten::_embedding_bag_backward", True),
        ("detector", "operators:", True),
        ("speech", "operators:", True),
    ],
)
def test_a_rehearsal_finds_what_the_scan_cannot(
    name: str, words: str, completes: bool, tmp_path: Path
) -> None:
    command = ["rehearse", "--migrate", "--", sys.executable, "train.py", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "joymigrate", *command, *SHORT[name]],
        cwd=REPOSITORY / "examples" / name,
        capture_output=True,
        text=True,
    )
    assert words in done.stderr
    assert (done.returncode == 0) == completes, done.stderr[-2000:]
    if completes:
        on_cpu = tmp_path / "cpu"
        options = ["--device", "cpu", "--out", on_cpu, *SHORT[name]]
        python("train.py", *options, cwd=REPOSITORY / "examples" / name)
        first, second = losses(tmp_path), losses(on_cpu)
        assert all(abs(first[n] - second[n]) <= 1e-4 * abs(second[n]) for n in second)
