"""`joymigrate status`: the steps, whether the tree still has them, and the way back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from joymigrate.cli._main import run
from joymigrate.ledger import Change, Ledger, Step, Subject
from tests.ledger.test_transaction import interrupted


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_bytes(b"cuda")
    ledger = Ledger(tmp_path)
    ledger.apply([Change("a.py", b"cuda", b"npu")], Step(kind="rewrite", chip="chip"))
    ledger.record(
        Step(
            kind="verify",
            chip="chip",
            subject=Subject("train.py"),
            verdict="pass",
            stage="S3",
            grade="rehearsed",
        )
    )
    return tmp_path


def test_text_has_a_line_per_step(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", str(project)]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.split() == ["0001", first.split()[1], "rewrite", "chip", "1", "file", "matches"]
    assert "S3 pass rehearsed" in second
    assert last == "joymigrate rollback takes back step 0001 (rewrite)."


def test_an_edited_file_is_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "a.py").write_bytes(b"mine")
    run(["status", str(project)])
    assert "      a.py was edited since\n" in capsys.readouterr().out


def test_json_has_every_field_of_a_step(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", str(project), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "joymigrate.status/1"
    assert (document["latest"], document["recovered"]) == ("0001", None)
    rewrite, verify = document["steps"]
    assert (rewrite["tree"], rewrite["can_roll_back"]) == ("matches", True)
    assert (verify["tree"], verify["can_roll_back"]) == ("no change", False)
    assert verify["schema"] == "joymigrate.step/1"
    assert (verify["stage"], verify["verdict"], verify["grade"]) == ("S3", "pass", "rehearsed")


def test_no_steps_is_not_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"No steps yet in {tmp_path}.\n"
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_change_is_ended_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(tmp_path)
    assert run(["status", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "note: the interrupted step 0001 was completed" in captured.err
    assert (tmp_path / "pkg/b.py").read_bytes() == b"\xef\xbb\xbfnpu"
    assert not (tmp_path / "gone.py").exists()


def test_a_read_only_ledger_can_be_read(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (project / ".joymigrate", project):
        os.chmod(path, 0o555)
    try:
        assert run(["status", str(project)]) == 0
    finally:
        for path in (project, project / ".joymigrate"):
            os.chmod(path, 0o755)
    assert "0001" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["status", "absent"], "no such file or folder"),
        (["status", "--format", "jsno"], "Did you mean 'json'"),
    ],
)
def test_wrong_arguments_are_errors(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert message in capsys.readouterr().err
