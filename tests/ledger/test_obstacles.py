"""What a user meets when something is in the way: a busy, full, damaged or unreadable ledger."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.ledger import Change, Ledger, Step, disk, transaction, tree
from joymigrate.ledger.lock import hold_lock
from joymigrate.ledger.subject import file_sha256
from tests.ledger.trees import tree_of, write_tree

STEP = Step(kind="rewrite", command="test")
CHANGE = Change("a.py", b"cuda", b"npu")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    write_tree(tmp_path, {"a.py": b"cuda", "b.py": b"cuda"})
    return Ledger(tmp_path)


def test_a_ledger_in_use_is_given_up_with_the_other_process_named(ledger: Ledger) -> None:
    ledger.apply([CHANGE], STEP)
    home = ledger.root / ".joymigrate"
    program = (
        "import sys, pathlib; from joymigrate.ledger.lock import hold_lock\n"
        "with hold_lock(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    try:
        with pytest.raises(JoyError, match=f"process {holder.pid}") as caught, hold_lock(home, 0.0):
            pass
        assert caught.value.help
    finally:
        holder.stdin.close()
        holder.wait()
    with hold_lock(home, 0.0):  # free again
        assert (home / "lock").read_text() == f"{os.getpid()}\n"


def test_a_lock_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / ".joymigrate" / "lock").mkdir(parents=True)
    with pytest.raises(JoyError) as caught, hold_lock(tmp_path / ".joymigrate"):
        pass
    assert str(tmp_path / ".joymigrate" / "lock") in str(caught.value.where)


def test_a_full_disk_while_preparing_leaves_everything_as_it_was(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree_of(ledger.root)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "write_durably", full)
    with pytest.raises(JoyError, match="No space left"):
        ledger.apply([CHANGE], STEP)
    monkeypatch.undo()
    assert tree_of(ledger.root) == before
    assert ledger.steps() == []
    home = ledger.root / ".joymigrate"
    assert not (home / "stage").exists()
    assert not list((home / "steps").iterdir())
    assert ledger.apply([CHANGE], STEP) is not None  # and the next one has the first number
    assert [step.id for step in ledger.steps()] == ["0001"]


def test_another_error_of_the_disk_than_a_foreign_file_system_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "staged").write_bytes(b"x")

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="Input/output"):
        transaction.move_into_place(tmp_path / "staged", tmp_path / "target")
    assert (tmp_path / "staged").exists()


@pytest.mark.parametrize("damage", [b"{", b"[]x", None])
def test_a_damaged_journal_is_named_and_nothing_is_touched(
    ledger: Ledger, damage: bytes | None
) -> None:
    ledger.apply([CHANGE], STEP)
    journal = ledger.root / ".joymigrate" / "pending.json"
    if damage is None:
        journal.mkdir()
    else:
        journal.write_bytes(damage)
    before = tree_of(ledger.root)
    with pytest.raises(JoyError, match="journal of an interrupted command") as caught:
        ledger.recover()
    assert str(journal) in str(caught.value.where)
    assert tree_of(ledger.root) == before


def test_an_entry_without_what_every_entry_has_names_its_line(ledger: Ledger) -> None:
    ledger.apply([CHANGE], STEP)
    path = ledger.root / ".joymigrate" / "ledger.jsonl"
    path.write_text(path.read_text() + '{"schema": "joymigrate.step/1", "time": ""}\n')
    with pytest.raises(JoyError, match="not a ledger entry") as caught:
        ledger.steps()
    assert str(caught.value.where).endswith("ledger.jsonl:2")


def test_what_is_no_file_in_the_ledgers_place_is_one_clear_error(ledger: Ledger) -> None:
    home = ledger.root / ".joymigrate"
    (home / "ledger.jsonl").mkdir(parents=True)
    with pytest.raises(JoyError, match="cannot read the ledger"):
        ledger.steps()
    other = ledger.root / "other"
    other.mkdir()
    write_tree(other, {"a.py": b"cuda", ".joymigrate": b"a file"})
    with pytest.raises(JoyError) as caught:
        Ledger(other).apply([CHANGE], STEP)
    assert str(other / ".joymigrate") in str(caught.value.where)
    assert (other / "a.py").read_bytes() == b"cuda"


def test_a_target_that_is_no_regular_file_is_refused_and_counts_as_another_content(
    ledger: Ledger,
) -> None:
    (ledger.root / "a.py").unlink()
    (ledger.root / "a.py").mkdir()
    assert tree.hash_of(ledger.root / "a.py") == "other"
    with pytest.raises(JoyError, match="not a regular file"):
        ledger.apply([CHANGE], STEP)
    assert ledger.steps() == []


def test_a_name_below_a_file_is_nothing_rather_than_an_error(ledger: Ledger) -> None:
    assert tree.read(ledger.root / "a.py" / "below") is None
    assert tree.mode_of(ledger.root / "a.py" / "below") is None
    assert tree.hash_of(ledger.root / "missing") is None


def test_a_name_that_no_disk_takes_is_one_clear_error(ledger: Ledger) -> None:
    with pytest.raises(JoyError, match="cannot look at it"):
        tree.read(ledger.root / ("x" * 5000))


def test_a_file_that_cannot_be_hashed_is_named(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="cannot read") as caught:
        file_sha256(tmp_path)
    assert str(tmp_path) in str(caught.value.where)


def test_only_an_empty_folder_that_a_step_made_goes_with_it(ledger: Ledger) -> None:
    ledger.apply([Change("new/deep/c.py", None, b"made")], STEP)
    (ledger.root / "new" / "mine.txt").write_text("keep")
    ledger.rollback()
    assert not (ledger.root / "new" / "deep").exists()
    assert (ledger.root / "new" / "mine.txt").read_text() == "keep"
