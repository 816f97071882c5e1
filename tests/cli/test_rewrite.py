"""`joymigrate rewrite`: in place, as a diff, as a copy; exit codes; killed at any moment."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate.cli._main import run
from joymigrate.ledger import Ledger
from tests.ledger.trees import Tree, run_and_die, tree_of, write_tree
from tests.rewrite.test_apply import git, needs_git

FILES = {
    "train.py": b"import torch\r\n\r\nx = torch.ones(2).cuda()\r\ntorch.cuda.synchronize()",
    "pkg/model.py": "import torch\n# 设备 cuda\ndevice = torch.device('cuda:0')\n".encode(),
    "run.sh": b"#!/bin/sh\nexport CUDA_VISIBLE_DEVICES=0\npython train.py\n",
    "notes.md": b"torch.cuda stays\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    write_tree(root, FILES)
    os.chmod(root / "run.sh", 0o755)
    return root


def rewrite(*arguments: object) -> int:
    return run(["rewrite", *map(str, arguments)])


def test_in_place_then_back(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree_of(project)
    assert rewrite(project) == 0
    after = tree_of(project)
    assert b"torch.npu.synchronize()" in after["train.py"][0]
    assert after["train.py"][0].count(b"\r\n") == after["train.py"][0].count(b"\n")
    assert not after["train.py"][0].endswith(b"\n")
    assert "# 设备 cuda\n".encode() in after["pkg/model.py"][0]
    assert after["run.sh"][1] == 0o755
    assert after["notes.md"] == before["notes.md"]
    out = capsys.readouterr().out
    assert "step 0001. Undo: joymigrate rollback 0001 --project" in out
    assert run(["rollback", "--project", str(project)]) == 0
    assert tree_of(project) == before


def test_a_second_run_changes_nothing_and_records_nothing(project: Path) -> None:
    rewrite(project)
    after, steps = tree_of(project), Ledger(project).steps()
    assert rewrite(project) == 0
    assert tree_of(project) == after
    assert Ledger(project).steps() == steps


def test_check_and_diff_write_nothing_and_return_one(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = tree_of(project)
    assert rewrite(project, "--check") == 1
    assert "Would rewrite" in capfd.readouterr().out
    assert rewrite(project, "--diff") == 1
    captured = capfd.readouterr()
    assert captured.out.startswith("diff --git a/pkg/model.py b/pkg/model.py\n")
    assert "Would rewrite" in captured.err
    assert tree_of(project) == before
    assert not (project / ".joymigrate").exists()
    rewrite(project)
    assert rewrite(project, "--check") == 0
    assert rewrite(project, "--diff") == 0


@needs_git
@pytest.mark.parametrize("style", ["direct", "agnostic", "shim"])
def test_git_applies_the_diff_to_the_same_result(project: Path, style: str) -> None:
    other = project.with_name("other")
    shutil.copytree(project, other)
    git(other, "init", "-q")
    command = [sys.executable, "-m", "joymigrate", "rewrite", ".", "--diff", "--style", style]
    patch = subprocess.run(command, cwd=other, capture_output=True).stdout
    (other.parent / "patch").write_bytes(patch)
    git(other, "apply", str(other.parent / "patch"))
    assert rewrite(project, "--style", style) == 0
    assert tree_of(other) == tree_of(project)


def test_json_carries_edits_and_what_was_left(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "hard.py").write_text(
        "import torch\nif torch.cuda.get_device_capability()[0] >= 8:\n    pass\n"
    )
    assert rewrite(project, "--format", "json", "--diff") == 1
    would = json.loads(capsys.readouterr().out)
    assert would["diff"].startswith("diff --git")
    assert rewrite(project, "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "joymigrate.rewrite/1"
    assert (document["applied"], document["step"]) == (True, "0001")
    assert (would["applied"], would["step"]) == (False, None)
    assert would["edits"] == document["edits"]
    files = {item["path"]: item["status"] for item in document["files"]}
    assert files["train.py"] == files["run.sh"] == files["pkg/model.py"] == "modified"
    assert document["summary"]["edits"] == len(document["edits"]) > 0
    assert [item["path"] for item in document["left"]] == ["hard.py"]
    assert all(item["reason"] for item in document["left"])


def test_a_created_file_is_part_of_the_step(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree_of(project)
    assert rewrite(project, "--style", "agnostic", "--format", "json") == 0
    files = json.loads(capsys.readouterr().out)["files"]
    created = [item["path"] for item in files if item["status"] == "created"]
    assert created
    assert (project / created[0]).is_file()
    assert run(["rollback", "--project", str(project)]) == 0
    assert tree_of(project) == before


def test_a_copy_is_complete_and_leaves_the_original_alone(project: Path, tmp_path: Path) -> None:
    before = tree_of(project)
    out = tmp_path / "out"
    assert rewrite(project, "-o", out) == 0
    assert tree_of(project) == before
    assert not (project / ".joymigrate").exists()
    copied = tree_of(out)
    assert copied.keys() == before.keys()
    assert rewrite(project) == 0
    assert copied == tree_of(project)
    assert run(["rollback", "--project", str(out)]) == 0
    assert tree_of(out) == before


def test_a_folder_in_use_is_not_overwritten(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    write_tree(out, {"mine.txt": b"x"})
    assert rewrite(project, "-o", out) == 2
    assert "not empty" in capsys.readouterr().err
    assert rewrite(project, "-o", tmp_path / "new") == 0
    assert rewrite(project, "-o", tmp_path / "new") == 0


@needs_git
def test_a_dirty_tree_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "start")
    (project / "notes.md").write_text("mine")
    assert rewrite(project) == 2
    assert "uncommitted changes in notes.md" in capsys.readouterr().err
    assert rewrite(project, "--diff") == 1
    assert rewrite(project, "--allow-dirty") == 0


def test_one_project_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        write_tree(tmp_path / name, {"pyproject.toml": b"", "a.py": b"import torch\n"})
    assert rewrite(tmp_path / "one", tmp_path / "two") == 2
    assert "several projects" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent"], "no such file"),
        ([".", "--style", "agnostc"], "Did you mean 'agnostic'"),
        ([".", "--to", "ascent"], "Did you mean 'ascend'"),
        ([".", "--format", "sarif"], "--format does not know"),
        ([".", "--diff", "-o", "out"], "-o writes a copy"),
        ([".", "--wrong"], "No such option"),
        ([], "Missing argument"),
    ],
)
def test_wrong_arguments_are_errors(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert rewrite(*arguments) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_do_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("print('hello')\n")
    assert rewrite(tmp_path) == 0
    assert capsys.readouterr().out == "Nothing to rewrite in 1 file.\n"
    assert not (tmp_path / ".joymigrate").exists()


def test_a_file_that_does_not_parse_does_not_stop_the_others(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "old.py").write_bytes(b"print 'torch.cuda'\n")
    assert rewrite(project) == 0
    assert (project / "old.py").read_bytes() == b"print 'torch.cuda'\n"
    assert "old.py" in capsys.readouterr().out
    assert b"npu" in (project / "train.py").read_bytes()


def test_names_that_are_not_utf_8_survive(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = os.fsdecode(b"\xff\xe4.py")
    write_tree(tmp_path, {name: b"import torch\ntorch.cuda.synchronize()\n"})
    before = tree_of(tmp_path)
    for arguments in (["--diff"], ["--check"], ["--format", "json", "--diff"]):
        assert rewrite(tmp_path, *arguments) == 1
    assert rewrite(tmp_path) == 0
    assert b"npu" in (tmp_path / name).read_bytes()
    for form in ("text", "json"):
        assert run(["status", str(tmp_path), "--format", form]) == 0
    assert run(["rollback", "--project", str(tmp_path)]) == 0
    assert tree_of(tmp_path) == before
    assert "\\udcff" in capfd.readouterr().out


def test_a_read_only_original_gives_a_copy_that_can_be_rewritten(tmp_path: Path) -> None:
    root = tmp_path / "project"
    write_tree(root, {"pkg/a.py": b"import torch\ntorch.cuda.synchronize()\n"})
    os.chmod(root / "pkg/a.py", 0o444)
    os.chmod(root / "pkg", 0o550)
    assert rewrite(root, "-o", tmp_path / "out") == 0
    assert b"npu" in (tmp_path / "out/pkg/a.py").read_bytes()
    assert (tmp_path / "out/pkg").stat().st_mode & 0o777 == 0o750
    os.chmod(root / "pkg", 0o755)


def many(root: Path, count: int = 30) -> tuple[Path, Tree, Tree]:
    """A project of many files, its tree, and the tree that a rewrite makes of it."""
    text = b"import torch\ntorch.cuda.synchronize()\n"
    write_tree(root, {f"m{number}.py": text for number in range(count)})
    twin = root.with_name(root.name + "-twin")
    shutil.copytree(root, twin)
    old = tree_of(root)
    assert rewrite(twin, "-q") == 0
    return root, old, tree_of(twin)


def test_killed_anywhere_in_the_command_the_tree_is_old_or_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real command, killed before its n-th disk call; `status` ends what was begun."""
    root, old, new = many(tmp_path / "project")
    seen = set()
    for at_call in (*range(1, 40, 13), *range(40, 400, 23)):
        died = run_and_die(lambda: rewrite(root, "-q"), at_call)
        assert run(["status", str(root)]) == 0
        tree = tree_of(root)
        assert tree in (old, new), f"a mixed tree after disk call {at_call}"
        seen.add(tree == new)
        if tree == new:
            assert run(["rollback", "--project", str(root), "-q"]) == 0
            assert tree_of(root) == old
        if not died:
            break
    assert seen == {True, False}


@pytest.mark.slow
def test_killed_at_any_time_no_further_command_is_needed(tmp_path: Path) -> None:
    """SIGKILL to the whole process group at random times; only the watcher is left to help."""
    root, old, new = many(tmp_path / "project", 200)
    command = [sys.executable, "-m", "joymigrate", "rewrite", str(root), "-q", "-j", "1"]
    for delay_ms in range(300, 2500, 45):
        process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
        try:
            process.wait(delay_ms / 1000)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with Ledger(root).writing():  # waits for the watcher, which holds the lock
            pass
        tree = tree_of(root)
        assert tree in (old, new), f"a mixed tree after {delay_ms} ms"
        if tree == new:
            Ledger(root).rollback()


def test_csv_has_a_row_for_each_site_written_or_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = b"import torch\ntorch.cuda.synchronize()\nprint(torch.cuda.get_device_capability())\n"
    write_tree(tmp_path, {"=a.py": text})
    assert run(["rewrite", str(tmp_path), "--check", "--format", "csv"]) == 1
    rows = list(csv.DictReader(io.StringIO(capfd.readouterr().out)))
    told = {(row["status"], row["line"], row["rule"]) for row in rows}
    assert {("would be written", "2", "JM101"), ("left", "3", "JM107")} <= told
    assert {row["path"] for row in rows} == {"'=a.py"}  # no formula
    assert all(row["reason"] for row in rows if row["status"] == "left")
