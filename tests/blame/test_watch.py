"""What a process that ends badly writes down, and what is read of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate.blame.end_files import prepare, read_chain
from joymigrate.blame.judge import judge
from joymigrate.blame.program import Program
from joymigrate.blame.stop import Stop, StopEvidence
from joymigrate.launching import START


def stop_of(folder: Path, program: str, *arguments: str) -> Stop:
    """Run a program with the notes on, and judge it as one on the host."""
    (folder / "train.py").write_text(program, encoding="utf-8")
    notes = folder.parent / "notes"
    variables = {**os.environ, **prepare(notes), "PYTHONPATH": str(START)}
    command = [sys.executable, "train.py", *arguments]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    said = read_chain(notes, done.stderr)
    return judge(StopEvidence(Program(folder), said, code, done.stderr, on_chip=False))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


CASES = {
    "a crash on the way out": (
        "import atexit, os\natexit.register(os.abort)\nprint(rows)\n",
        "program", "train.py:3", "NameError",
    ),
    "a key": ("rows = {}\nrows['b']\n", "program", "train.py:2", "KeyError: 'b'"),
    "a syntax": ("print('x'\n", "program", "train.py:1", "SyntaxError"),
    "a package": ("import no_such_thing\n", "environment", "train.py:1", "ModuleNotFoundError"),
    "an exit with words": (
        "import sys\ndef check():\n    sys.exit('no GPU found')\ncheck()\n",
        "environment", "train.py:3", "no GPU found",
    ),
    "an exit in a handler": (
        "import sys\ntry:\n    open('data.csv')\nexcept OSError as e:\n    print(e); sys.exit(3)\n",
        "environment", "train.py:5", "exit code 3",
    ),
    "a wrong option": (
        "import argparse\np = argparse.ArgumentParser()\np.parse_args(['--stps'])\n",
        "environment", "train.py:3", "exit code 2",
    ),
    "a handled file, then something else": (
        "def build():\n    return [][3]\ntry:\n    open('a.csv')\nexcept OSError:\n    build()\n",
        "program", "train.py:2", "IndexError",
    ),
    "a crash": (
        "import os, signal\ndef forward():\n    os.kill(os.getpid(), signal.SIGSEGV)\nforward()\n",
        "unknown", "train.py:3", "Segmentation fault",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_process_says_what_ended_it(name: str, project: Path) -> None:
    program, whose, line, said = CASES[name]
    stop = stop_of(project, program)
    assert (stop.whose.value, stop.line) == (whose, line)
    assert said in stop.message


def test_a_program_that_ends_well_leaves_nothing(project: Path) -> None:
    stop_of(project, "import sys\nsys.exit(0)\n")
    assert read_chain(project.parent / "notes") == ()


def test_the_program_sees_its_errors_as_before(project: Path) -> None:
    caught = "try:\n    sys.exit('over')\nexcept SystemExit as e:\n    assert e.code == 'over'\n"
    stop_of(project, f"import sys\n{caught}raise ValueError('x')\n")
    said = read_chain(project.parent / "notes")
    assert [one.said for one in said] == ["ValueError: x"]


def test_what_a_parent_says_of_its_child_gives_way_to_the_childs_own_words(project: Path) -> None:
    parent = (
        "import subprocess, sys\n"
        "class ChildFailedError(Exception): pass\n"
        "done = subprocess.run([sys.executable, '-c', 'raise KeyError(7)'])\n"
        "raise ChildFailedError(done.returncode)\n"
    )
    stop = stop_of(project, parent)
    assert stop.message == "KeyError: 7"


def test_a_launcher_that_ends_with_its_childs_code_gives_way_to_the_childs_own_words(
    project: Path,
) -> None:
    (project / "deepspeed" / "launcher").mkdir(parents=True)
    start = "import subprocess, sys\ndef main(*words):\n"
    start += "    sys.exit(subprocess.run([sys.executable, *words]).returncode)\n"
    for name in ("runner", "launch"):
        (project / "deepspeed" / "launcher" / f"{name}.py").write_text(start)
    inner = "from deepspeed.launcher.launch import main; main('-c', 'raise KeyError(7)')"
    stop = stop_of(project, f"from deepspeed.launcher.runner import main\nmain('-c', {inner!r})\n")
    assert stop.message == "KeyError: 7"
