"""The ledger's file: append-only, torn tails mended, damage named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.ledger import FileHash, Ledger, Step, Subject, project_root


def recorded(ledger: Ledger, count: int) -> Path:
    for number in range(count):
        ledger.record(Step(kind="coverage", command=f"run {number}"))
    return ledger.home / "ledger.jsonl"


def test_a_step_comes_back_as_it_was_recorded(tmp_path: Path) -> None:
    step = Step(
        kind="verify",
        command="joymigrate verify replay base.jmb",
        chip="somechip",
        subject=Subject("train.py", "ab" * 32),
        inputs=(FileHash("base.jmb", "cd" * 32),),
        outputs=(FileHash("verdict.json", None),),
        verdict="pass",
        stage="S4",
        grade="rehearsed",
        judges="0001",
        details={"checkpoint": "runs/步骤-100"},
    )
    ledger = Ledger(tmp_path)
    written = ledger.record(step, {"verdict.json": b"{}", "parts/a.bin": b"\0"})
    assert ledger.steps() == [written]
    assert (written.id, written.verdict, written.details) == ("0001", "pass", step.details)
    assert written.time.endswith("Z")
    assert (ledger.folder("0001") / "parts/a.bin").read_bytes() == b"\0"


def test_a_torn_last_line_is_skipped_and_then_mended(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    path = recorded(ledger, 2)
    whole = path.read_bytes()
    for cut in range(whole.index(b"\n") + 1, len(whole)):
        path.write_bytes(whole[:cut])
        assert len(ledger.steps()) == (2 if cut == len(whole) - 1 else 1)
        ledger.record(Step(kind="coverage", command="after"))
        lines = path.read_bytes().split(b"\n")
        assert lines[-1] == b""
        commands = [json.loads(line)["command"] for line in lines[:-1]]
        assert commands in (["run 0", "after"], ["run 0", "run 1", "after"])


def test_damage_inside_the_ledger_names_the_line(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    path = recorded(ledger, 3)
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1][:20]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(JoyError, match="a damaged line") as error:
        ledger.steps()
    assert error.value.where == f"{path}:2"


def test_a_ledger_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    path = recorded(ledger, 1)
    path.write_text(path.read_text().replace("joymigrate.step/1", "joymigrate.step/9"))
    with pytest.raises(JoyError, match=r"joymigrate\.step/9"):
        ledger.steps()


def test_reading_creates_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.steps() == []
    assert not ledger.exists()
    assert ledger.latest() is None
    assert ledger.states() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("marker", [".joymigrate/", "joymigrate.toml", "pyproject.toml", ".git/"])
def test_the_root_is_the_nearest_folder_with_a_marker(tmp_path: Path, marker: str) -> None:
    deep = tmp_path / "project/src/pkg"
    deep.mkdir(parents=True)
    target = tmp_path / "project" / marker
    target.mkdir() if marker.endswith("/") else target.touch()
    (deep / "a.py").touch()
    assert project_root(deep / "a.py") == tmp_path / "project"
    assert project_root(deep) == tmp_path / "project"


def test_without_a_marker_the_root_is_the_path_itself(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    assert project_root(tmp_path) == tmp_path
    assert project_root(tmp_path / "a.py") == tmp_path
