"""Undo: exact, in reverse order, refusing over foreign edits, idempotent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.ledger import Change, Ledger, Step
from tests.ledger.trees import tree_of, write_tree

REWRITE = Step(kind="rewrite")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Two changes of a.py, the second one also makes a module."""
    write_tree(tmp_path, {"a.py": b"cuda", "b.py": b"keep"})
    os.chmod(tmp_path / "a.py", 0o755)
    book = Ledger(tmp_path)
    book.apply([Change("a.py", b"cuda", b"npu")], REWRITE)
    book.apply([Change("a.py", b"npu", b"npu2"), Change("lib/made.py", None, b"x")], REWRITE)
    return book


def contents(ledger: Ledger) -> dict[str, bytes]:
    return {name: data for name, (data, _) in tree_of(ledger.root).items()}


def test_without_a_name_the_latest_change_goes(ledger: Ledger) -> None:
    done = ledger.rollback()
    assert contents(ledger) == {"a.py": b"npu", "b.py": b"keep"}
    assert not (ledger.root / "lib").exists()
    assert [step.undoes for step in done.records] == ["0002"]
    assert ledger.steps()[-1].kind == "rollback"


def test_again_and_again_goes_further_back_and_then_nothing(ledger: Ledger) -> None:
    ledger.rollback()
    ledger.rollback()
    assert contents(ledger) == {"a.py": b"cuda", "b.py": b"keep"}
    count = len(ledger.steps())
    assert ledger.rollback().target is None
    assert len(ledger.steps()) == count


def test_an_earlier_step_takes_the_later_ones_with_it_in_reverse_order(ledger: Ledger) -> None:
    done = ledger.rollback("0001")
    assert [step.undoes for step in done.records] == ["0002", "0001"]
    assert contents(ledger) == {"a.py": b"cuda", "b.py": b"keep"}
    assert tree_of(ledger.root)["a.py"][1] == 0o755


def test_rolling_back_twice_changes_and_records_nothing(ledger: Ledger) -> None:
    ledger.rollback("1")
    count = len(ledger.steps())
    done = ledger.rollback("1")
    assert done.undone == ()
    assert len(ledger.steps()) == count


def test_a_rollback_can_be_rolled_back(ledger: Ledger) -> None:
    before = tree_of(ledger.root)
    ledger.rollback("0002")
    ledger.rollback("0003")
    assert tree_of(ledger.root) == before
    latest = ledger.latest()
    assert latest is not None
    assert latest.id == "0002"
    ledger.rollback("0001")
    assert contents(ledger) == {"a.py": b"cuda", "b.py": b"keep"}


def test_a_foreign_edit_is_refused_by_name_and_nothing_changes(ledger: Ledger) -> None:
    (ledger.root / "a.py").write_bytes(b"mine")
    before, steps = tree_of(ledger.root), ledger.steps()
    with pytest.raises(JoyError, match=r"a\.py: edited after step 0002"):
        ledger.rollback("0001")
    assert tree_of(ledger.root) == before
    assert ledger.steps() == steps


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda root: (root / "a.py").unlink(), r"a\.py: removed"),
        (lambda root: (root / "lib/made.py").write_bytes(b"more"), r"lib/made\.py: edited"),
    ],
)
def test_every_kind_of_foreign_change_is_named(ledger: Ledger, spoil, message: str) -> None:
    spoil(ledger.root)
    with pytest.raises(JoyError, match=message):
        ledger.rollback()


def test_force_overwrites_an_edit_and_keeps_it_within_reach(ledger: Ledger) -> None:
    (ledger.root / "a.py").write_bytes(b"mine")
    done = ledger.rollback("0002", force=True)
    assert contents(ledger)["a.py"] == b"npu"
    assert done.overwritten == ("a.py",)
    ledger.rollback(done.records[0].id)
    assert contents(ledger)["a.py"] == b"mine"


def test_edits_of_other_files_do_not_matter(ledger: Ledger) -> None:
    (ledger.root / "b.py").write_bytes(b"mine")
    (ledger.root / "lib/own.py").write_bytes(b"mine too")
    ledger.rollback()
    assert contents(ledger) == {"a.py": b"npu", "b.py": b"mine", "lib/own.py": b"mine too"}


def test_what_the_user_took_back_by_hand_is_fine(ledger: Ledger) -> None:
    (ledger.root / "a.py").write_bytes(b"npu")
    ledger.rollback("0002")
    assert contents(ledger) == {"a.py": b"npu", "b.py": b"keep"}


def test_a_changed_mode_survives(ledger: Ledger) -> None:
    os.chmod(ledger.root / "a.py", 0o700)
    ledger.rollback("0001")
    assert tree_of(ledger.root)["a.py"] == (b"cuda", 0o700)


def test_a_removed_file_comes_back_with_its_mode(tmp_path: Path) -> None:
    write_tree(tmp_path, {"d/run.sh": b"#!"})
    os.chmod(tmp_path / "d/run.sh", 0o755)
    book = Ledger(tmp_path)
    book.apply([Change("d/run.sh", b"#!", None)], REWRITE)
    (tmp_path / "d").rmdir()
    book.rollback()
    assert tree_of(tmp_path) == {"d/run.sh": (b"#!", 0o755)}


def test_a_stage_stands_for_the_change_that_it_judged(ledger: Ledger) -> None:
    ledger.record(Step(kind="verify", verdict="fail", stage="S4", details={"checkpoint": "c7"}))
    done = ledger.rollback("S4")
    assert done.target is not None
    assert done.target.details == {"checkpoint": "c7"}
    assert [step.undoes for step in done.records] == ["0002"]
    assert contents(ledger)["a.py"] == b"npu"
    assert ledger.rollback("0002").undone == ()


def test_a_verdict_that_names_its_change_takes_back_that_one(ledger: Ledger) -> None:
    ledger.record(Step(kind="verify", verdict="fail", stage="S4", judges="0001"))
    done = ledger.rollback("S4")
    assert [step.undoes for step in done.records] == ["0002", "0001"]


def test_an_unknown_step_suggests_a_near_one(ledger: Ledger) -> None:
    with pytest.raises(JoyError, match=r"no step '0022'\. Did you mean '0002'"):
        ledger.rollback("22")


def test_a_lost_blob_is_named_and_nothing_changes(ledger: Ledger) -> None:
    for path in (ledger.folder("0002") / "before").iterdir():
        path.unlink()
    before = tree_of(ledger.root)
    with pytest.raises(JoyError, match=r"the old content of a\.py is missing"):
        ledger.rollback()
    assert tree_of(ledger.root) == before


def test_states_tell_what_became_of_every_step(ledger: Ledger) -> None:
    assert [s.tree for s in ledger.states()] == ["superseded", "matches"]
    (ledger.root / "lib/made.py").write_bytes(b"mine")
    assert [(s.tree, s.edited) for s in ledger.states()] == [
        ("superseded", ()),
        ("edited", ("lib/made.py",)),
    ]
    (ledger.root / "lib/made.py").write_bytes(b"x")
    ledger.rollback()
    assert [s.tree for s in ledger.states()] == ["matches", "rolled back", "took back"]
