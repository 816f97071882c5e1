"""A program that was ported by hand, beside its origin: which origin, and what is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.journey.source import find_origin
from tests.journey.test_examples import REPOSITORY, pytestmark, steps_of

pytestmark = [*pytestmark]
CUDA = """
import torch
from torch import nn

assert torch.cuda.is_available()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).to("cuda")
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    loss = net(torch.randn(4, 6, device="cuda")).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    print(f"step {step} loss {loss.item():.4f}", flush=True)
"""
PORTED = "import torch_npu\n" + CUDA.replace("cuda", "npu")
WRONG = PORTED.replace("loss.backward()", "(2 * loss).backward()")


def git(project: Path, *words: str) -> None:
    who = ["-c", "user.email=a@b.example", "-c", "user.name=a", "-c", "core.autocrlf=false"]
    subprocess.run(["git", "-C", str(project), *who, *words], check=True, capture_output=True)


def committed(folder: Path, **files: str) -> Path:
    """A repository with these Python files, and data that git does not keep."""
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    (folder / ".gitignore").write_text("data/\n")
    (folder / "data").mkdir()
    (folder / "data" / "x.bin").write_bytes(b"1")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return folder


def test_the_origin_is_the_commit_that_the_work_tree_differs_from(tmp_path: Path) -> None:
    project = committed(tmp_path / "p", train=CUDA)
    (project / "train.py").write_text(PORTED)
    found = find_origin(project, "", tmp_path / "origin")
    assert (found.name, found.in_memory) == ("HEAD", False)
    assert (found.folder / "train.py").read_text() == CUDA
    assert (found.folder / "data" / "x.bin").read_bytes() == b"1"


def test_a_commit_is_laid_beside_the_project_and_never_into_it(tmp_path: Path) -> None:
    project = committed(tmp_path / "p", train=CUDA)
    (project / "data" / "table.csv").write_text("old\n")
    git(project, "add", "-f", "data/table.csv")
    git(project, "commit", "-qm", "data")
    (project / "data" / "table.csv").write_text("new\n")  # lies in a folder that is linked
    (project / "later.py").write_text("")
    git(project, "add", "later.py")
    find_origin(project, "HEAD", tmp_path / "origin")
    assert (project / "data" / "table.csv").read_text() == "new\n"
    assert (tmp_path / "origin" / "data" / "table.csv").read_text() == "old\n"
    assert (tmp_path / "origin" / "data" / "x.bin").read_bytes() == b"1"
    assert not (tmp_path / "origin" / "later.py").exists()  # the commit has no such file
    assert (project / "later.py").exists()


def test_an_unchanged_project_is_rewritten_in_memory(tmp_path: Path) -> None:
    found = find_origin(committed(tmp_path / "p", train=CUDA), "", tmp_path / "origin")
    assert found.in_memory


def test_what_is_no_folder_and_no_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="'elsewhere' is no folder and no commit"):
        find_origin(committed(tmp_path / "p", train=CUDA), "elsewhere", tmp_path / "origin")


def paired(project: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, result and errors of `joymigrate pair`."""
    done = subprocess.run(
        [sys.executable, "-m", "joymigrate", "pair", ".", "--format", "json", "-q", *words],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


@pytest.mark.dear
def test_a_program_that_names_no_cuda_is_never_its_own_baseline(tmp_path: Path) -> None:
    project = committed(tmp_path / "p", train=PORTED)
    code, _, said = paired(project, "--", "python", "train.py")
    assert code == 2
    assert "a program is never its own baseline" in said
    assert "--origin" in said


@pytest.mark.slow
def test_two_programs_of_one_project_that_compute_the_same(tmp_path: Path) -> None:
    project = committed(tmp_path / "p", train_cuda=CUDA, train_npu=PORTED)
    before = {path: path.read_bytes() for path in project.glob("*.py")}
    own = ("--baseline-entry", "python train_cuda.py", "--", "python", "train_npu.py")
    code, document, said = paired(project, *own)
    steps = steps_of(document)
    assert (code, document["verdict"]) == (0, "pass"), said
    assert steps["verify"]["figures"]["coverage"]["compared"] > 20  # no empty pass
    assert steps["train"]["figures"]["losses"] == [3, 3]
    assert {steps[name]["status"] for name in ("scan", "rewrite", "coverage")} == {"skipped"}
    assert {path: path.read_bytes() for path in project.glob("*.py")} == before


@pytest.mark.slow
def test_a_wrong_port_is_told_with_the_step_where_it_parts(tmp_path: Path) -> None:
    project = committed(tmp_path / "p", train=CUDA)
    (project / "train.py").write_text(WRONG)
    code, document, said = paired(project, "--", "python", "train.py")
    assert (code, document["verdict"]) == (1, "fail"), said
    first = steps_of(document)["verify"]["figures"]["first_divergence"]
    assert (first["phase"], first["step"]) == ("loss", 0), first


@pytest.mark.slow
def test_an_unchanged_program_is_paired_as_it_is(tmp_path: Path) -> None:
    project = committed(tmp_path / "p", train=CUDA)
    code, document, said = paired(project, "--", "python", "train.py")
    assert (code, document["verdict"]) == (0, "pass"), said
    assert (project / "train.py").read_text() == CUDA
