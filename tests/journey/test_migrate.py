"""`joymigrate migrate` on the example programs: the whole way, a gate, the way back, resuming."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples"
SMALL = "--steps 4 --batch-size 4 --layers 2 --width 32"
needs_chip = pytest.mark.skipif(
    PathFinder.find_spec("torch_npu") is None, reason="torch_npu is not installed"
)


def migrate(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, "-m", "joymigrate", "migrate", str(project), *words],
        capture_output=True,
        text=True,
        env=environment,
    )


def copied(name: str, tmp_path: Path) -> Path:
    project = tmp_path / name
    shutil.copytree(EXAMPLES / name, project)
    (project / "pyproject.toml").write_text("[tool.joymigrate]\n")
    return project


def test_a_dry_run_shows_the_plan_and_touches_nothing(tmp_path: Path) -> None:
    project = copied("ctr", tmp_path)
    before = sorted(path.name for path in project.rglob("*"))
    done = migrate(project, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "rehearse" in done.stdout
    assert "no program was named" in done.stdout
    assert sorted(path.name for path in project.rglob("*")) == before


@pytest.mark.slow
def test_without_an_entry_it_scans_and_rewrites_and_goes_back(tmp_path: Path) -> None:
    project = copied("ctr", tmp_path)
    source = (project / "train.py").read_bytes()
    done = migrate(project, "--until", "rewrite", "--format", "json", "-q")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    states = {one["name"]: one["status"] for one in document["journey"]}
    assert states["rewrite"] == "done"
    assert (states["baseline"], states["verify"]) == ("skipped", "pending")
    assert (project / "train.py").read_bytes() != source
    back = [sys.executable, "-m", "joymigrate", "rollback", document["rewrite_step"]]
    subprocess.run(back, cwd=project, check=True, capture_output=True)
    assert (project / "train.py").read_bytes() == source


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--until", "verfy"], "verify"),
        (["--style", "shim"], "agnostic"),
        (["--to", "abacus"], "abacus"),
    ],
)
def test_wrong_words_are_one_clear_error(words: list[str], named: str, tmp_path: Path) -> None:
    done = migrate(copied("ctr", tmp_path), *words)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@needs_chip
@pytest.mark.compiler
def test_a_gate_holds_explains_and_a_second_call_goes_on(tmp_path: Path) -> None:
    project = copied("classifier", tmp_path)
    words = ["--entry", "python train.py --steps 1 --batch-size 4", "--ci", "--until", "rehearse"]
    done = migrate(project, *words)
    assert done.returncode == 1, done.stderr
    assert "channels_last" in done.stdout
    assert "joymigrate rollback" in done.stdout
    ci = project / ".joymigrate" / "journey" / "ci"
    assert "<failure" in (ci / "junit.xml").read_text()
    assert "channels_last" in (ci / "summary.md").read_text()
    assert json.loads((ci / "scan.sarif").read_text())["runs"]
    lines = (project / ".joymigrate" / "ledger.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert [k for k in kinds if k.startswith("migrate.")] == [
        "migrate.scan",
        "migrate.baseline",
        "migrate.rewrite",
        "migrate.rehearse",
    ]
    # What the user then mends makes the journey begin anew, on code that is already rewritten.
    program = project / "train.py"
    text = program.read_text()
    assert "memory_format=torch.channels_last" in text
    program.write_text(text.replace("memory_format=torch.channels_last", "device"))
    again = migrate(project, *words, "--format", "json", "--allow-dirty")
    document = json.loads(again.stdout)
    states = {one["name"]: (one["status"], one["summary"]) for one in document["journey"]}
    assert states["rehearse"][0] == "done", again.stdout + again.stderr
    third = json.loads(migrate(project, *words, "--format", "json").stdout)
    assert third["journey"][3]["seconds"] == document["journey"][3]["seconds"]  # kept


@needs_chip
@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize(
    ("name", "options", "fallbacks"),
    [
        ("ctr", "--steps 3 --batch-size 16", ["aten::_embedding_bag_backward"]),
        ("gpt", f"{SMALL} --log-every 1 --eval-sums 2 --no-amp", []),
    ],
)  # fmt: skip
def test_the_whole_way(name: str, options: str, fallbacks: list[str], tmp_path: Path) -> None:
    project = copied(name, tmp_path)
    done = migrate(project, "--entry", f"python train.py {options}", "--format", "json", "-q")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    document = json.loads(done.stdout)
    found = {one["name"]: one for one in document["journey"]}
    assert document["verdict"] == "pass"
    assert document["rehearsal"] is True
    assert found["rehearse"]["figures"]["fallback_ops"] == fallbacks
    assert found["verify"]["figures"]["verdict"] == "pass"
    assert found["verify"]["figures"]["first_divergence"] is None
    assert found["train"]["verdict"] == "pass"
    assert found["serve"]["status"] == "skipped"
    page = (project / ".joymigrate" / "journey" / "report.html").read_text()
    for one in document["journey"]:
        for name in one["evidence"]:
            assert (project / ".joymigrate" / "journey" / name).is_file()
            assert f'href="{name}"' in page


QUESTION = """
import importlib

import torch

torch.manual_seed(0)
USE = importlib.import_module("torch.cuda").is_available()
model = torch.nn.Linear(4, 2)
if USE:
    model.cuda()
x = torch.ones(3, 4)
if USE:
    x = x.cuda()
print("loss", model(x).pow(2).mean().item())
"""


@pytest.mark.slow
@needs_chip
@pytest.mark.compiler
def test_a_program_that_stays_on_the_cpu_does_not_pass(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(QUESTION)
    (tmp_path / "pyproject.toml").write_text("[tool.joymigrate]\n")
    done = migrate(tmp_path, "--entry", "python train.py", "--format", "json", "-q")
    document = json.loads(done.stdout)
    found = {one["name"]: one for one in document["journey"]}
    assert document["verdict"] == "inconclusive"
    assert "computed nothing on the chip" in found["verify"]["summary"]
    # The rewrite imports its helper above the line.
    assert found["verify"]["figures"]["idle"]["line"] == "train.py:8"
    told = subprocess.run(
        [sys.executable, "-m", "joymigrate", "next", str(tmp_path), "--format", "json"],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    step = json.loads(told.stdout)
    assert (step["state"], step["step"]["place"]) == ("not decided", "train.py:8")
