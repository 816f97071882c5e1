"""`joymigrate rollback`: the tree as it was, told in words, with the right exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.cli._main import run
from joymigrate.ledger import Change, Ledger, Step


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two rewrites of one file and a verdict, seen from inside the project."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "a.py").write_bytes(b"cuda")
    ledger = Ledger(tmp_path)
    ledger.apply([Change("a.py", b"cuda", b"npu")], Step(kind="rewrite", chip="chip"))
    ledger.apply(
        [Change("a.py", b"npu", b"npu2"), Change("lib/b.py", None, b"")], Step(kind="rewrite")
    )
    ledger.record(
        Step(kind="verify", verdict="fail", stage="S4", details={"checkpoint": "run/step-40"})
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_latest_step_goes_first(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rollback"]) == 0
    assert capsys.readouterr().out == (
        "step 0002 (rewrite) undone as step 0004:\n"
        "  a.py\n"
        "  lib/b.py (removed)\n"
        "The tree is as it was before step 0002 (2 files put back).\n"
    )
    assert (project / "a.py").read_bytes() == b"npu"


def test_a_stage_names_its_checkpoint(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rollback", "S4"]) == 0
    out = capsys.readouterr().out
    assert "The checkpoint of that step is run/step-40; checkpoints stay as they are." in out
    assert (project / "a.py").read_bytes() == b"npu"


def test_twice_says_so_and_succeeds(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["rollback", "1"])
    steps = Ledger(project).steps()
    capsys.readouterr()
    assert run(["rollback", "1"]) == 0
    assert capsys.readouterr().out == "Step 0001 is rolled back already; nothing to do.\n"
    assert run(["rollback"]) == 0
    assert capsys.readouterr().out == "Nothing to roll back.\n"
    assert Ledger(project).steps() == steps


def test_foreign_edits_are_refused_then_forced(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "a.py").write_bytes(b"mine")
    assert run(["rollback"]) == 2
    error = capsys.readouterr().err
    assert "a.py: edited after step 0002" in error
    assert "help:" in error
    assert (project / "a.py").read_bytes() == b"mine"
    assert run(["rollback", "--force"]) == 0
    assert "edited since and overwritten: a.py (back with: joymigrate rollback 0004)" in (
        capsys.readouterr().out
    )
    assert run(["rollback", "0004"]) == 0
    assert (project / "a.py").read_bytes() == b"mine"


def test_from_outside_the_project_is_named(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert run(["rollback"]) == 2
    assert run(["rollback", "--project", str(project), "-q"]) == 0
    assert (project / "a.py").read_bytes() == b"npu"


def test_an_unknown_step_is_an_error(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rollback", "S5"]) == 2
    error = capsys.readouterr().err
    assert "no step 'S5'." in error
    assert "stages here: S4" in error
