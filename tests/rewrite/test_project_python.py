"""Results are parsed by the project's Python, and what parsed them is told."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from joymigrate.model import Patch
from joymigrate.rewrite.project_python import check_patches, find_wanted
from tests.rewrite.projects import write
from tests.rewrite.test_proof import finding as edit

OURS = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("pyproject.toml", '[project]\nrequires-python = ">=3.8"\n', (3, 8)),
        ("pyproject.toml", '[project]\nrequires-python = ">=3.9,<3.13"\n', (3, 9)),
        ("pyproject.toml", '[tool.poetry.dependencies]\npython = "^3.10"\n', (3, 10)),
        ("setup.py", 'setup(\n    python_requires=">=3.7.2",\n)\n', (3, 7)),
        ("setup.cfg", "[options]\npython_requires = >= 3.6\n", (3, 6)),
        (".venv/pyvenv.cfg", "home = /usr\nversion = 3.12.4\n", (3, 12)),
        (".python-version", "3.9.18\n", (3, 9)),
        ("pyproject.toml", '[project]\nname = "a"\n', None),
        ("setup.py", "setup(python_requires=VERSION)\n", None),
    ],
)
def test_the_version_of_a_project(
    name: str, text: str, version: tuple[int, int] | None, tmp_path: Path
) -> None:
    found = find_wanted(write(tmp_path, {name: text}))
    assert (found.version if found else None) == version


def patch(after: str, before: str = "x = 1\n") -> Patch:
    return Patch(Path("a.py"), before.encode(), after.encode())


def test_an_older_grammar_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    write(tmp_path, {".python-version": "3.2"})
    young = "if (n := 1):\n    pass\n"
    kept, notes = check_patches([patch(young), Patch(Path("b.py"), b"", b"x = 2\n")], tmp_path)
    assert [each.path.name for each in kept] == ["b.py"]
    assert "grammar of Python 3.2 (.python-version)" in str(notes[0])
    assert "a.py is not written" in str(notes[1])
    # A file that it could not parse before is not ours to judge.
    assert len(check_patches([patch(young + "y = 1\n", young)], tmp_path)[0]) == 1


def test_an_interpreter_of_that_version_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {".python-version": "3.99", "bin/.keep": ""})
    (tmp_path / "bin/python3.99").symlink_to(sys.executable)
    assert "not by the project's 3.99" in str(check_patches([patch("x = 2\n")], tmp_path)[1][0])
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    broken = Patch(Path("b.py"), b"", b"x = \n")
    kept, notes = check_patches([patch("x = 2\n"), broken], tmp_path)
    assert [each.after for each in kept] == [b"x = 2\n"]
    assert str(notes[0]) == "results were parsed by Python 3.99 (.python-version)"


def test_nothing_is_told_where_the_versions_are_the_same(tmp_path: Path) -> None:
    write(tmp_path, {".python-version": OURS})
    assert check_patches([patch("x = 2\n")], tmp_path)[1] == []


def test_the_helper_and_what_imports_it_stay_away_together(tmp_path: Path) -> None:
    write(tmp_path, {"setup.py": 'setup(\n    python_requires=">=3.6,<3.7",\n)\n'})
    needs = replace(edit(0, 1, b"y"), needs="helper")
    user = Patch(Path("use.py"), b"x = 1\n", b"import joymigrate_device\n", (needs,))
    helper = Patch(Path("joymigrate_device.py"), None, b"def f(a, /):\n    pass\n")
    kept, _ = check_patches([user, helper], tmp_path)
    assert kept == []


def test_a_requirement_of_an_ancient_python_is_not_taken_at_its_word(tmp_path: Path) -> None:
    found = find_wanted(write(tmp_path, {"setup.py": 'setup(\n    python_requires=">=3.0",\n)\n'}))
    assert found is not None
    assert found.version == (3, 6)
