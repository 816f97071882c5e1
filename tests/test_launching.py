"""Every Python of a run calls our hooks first, however the command sets its environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from joymigrate import launching

REPOSITORY = Path(__file__).parents[1]
ASKS = "import sys; print(sorted({'joymigrate.run.door.start'} & set(sys.modules)))"
LOADED = "['joymigrate.run.door.start']\n"


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An environment as an install leaves it: the package, and its .pth file."""
    real = Path(sys.executable).resolve()
    packages = tmp_path / f"env/lib/python{sys.version_info.major}.{sys.version_info.minor}"
    packages /= "site-packages"
    packages.mkdir(parents=True)
    (packages / "editable.pth").write_text(f"{REPOSITORY}\n")
    pth = REPOSITORY / "scripts/joymigrate.pth"
    (packages / pth.name).write_bytes(pth.read_bytes())
    (tmp_path / "env/pyvenv.cfg").write_text(f"home = {real.parent}\n")
    (tmp_path / "env/bin").mkdir()
    (tmp_path / "env/bin/python").symlink_to(real)
    (tmp_path / "ask.py").write_text(ASKS)
    (tmp_path / "run.sh").write_text("export PYTHONPATH=.\nexec python ask.py\n")
    return str(tmp_path / "env/bin/python")


@pytest.mark.parametrize(
    "words",
    [
        ["python", "ask.py"],
        ["env", "PYTHONPATH=.", "python", "ask.py"],
        ["env", "-u", "PYTHONPATH", "python", "ask.py"],
        ["bash", "-c", "PYTHONPATH=. python ask.py"],
        ["bash", "run.sh"],
        ["python", "-E", "ask.py"],
        ["python", "-I", "ask.py"],
    ],
    ids=" ".join,
)
def test_the_hooks_are_loaded(
    words: list[str],
    python: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert start(words, python, tmp_path, monkeypatch) == 0
    assert capfd.readouterr() == (LOADED, "")


@pytest.mark.parametrize(
    "words", [["python", "-S", "ask.py"], ["env", "-i", "python", "ask.py"]], ids=" ".join
)
def test_a_run_says_that_they_are_not(
    words: list[str],
    python: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = [python if word == "python" else word for word in words]
    assert start(words, python, tmp_path, monkeypatch) == 0
    said, error = capfd.readouterr()
    assert said == "[]\n"
    assert error.startswith(f"error: {launching.NOT_STARTED}\n")


def start(words: list[str], python: str, folder: Path, patch: pytest.MonkeyPatch) -> int:
    """Run a command in that environment, with a door for its Pythons."""
    patch.chdir(folder)
    first = [python if words[0] == "python" else words[0], *words[1:]]
    path = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JOYMIGRATE", "PYTHON"))}
    return launching.run_with_hooks(first, {**kept, "PATH": path, "JOYMIGRATE_DOOR": "{}"})
