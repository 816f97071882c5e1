"""Any history of changes, rollbacks and kills: the ledger and a simple model stay one."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from joymigrate.errors import JoyError
from joymigrate.ledger import Change, Ledger, Step
from tests.ledger.trees import run_and_die, write_tree

NAMES = ("a.py", "b.py", "d/c.py", "d/e/f.py")
Content = dict[str, bytes]


class History(RuleBasedStateMachine):
    """The model: the tree before every step that still holds."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.tree: Content = {"a.py": b"a0", "d/c.py": b"c0"}
        write_tree(self.root, self.tree)
        self.ledger = Ledger(self.root)
        self.before: list[tuple[str, Content]] = []  # live changes: id and the tree before it
        self.number = 0

    def teardown(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def changes(self, names: set[str], remove: bool) -> list[Change]:
        self.number += 1
        made = []
        for name in sorted(names):
            old = self.tree.get(name)
            new = None if remove and old is not None else f"{name}{self.number}".encode()
            made.append(Change(name, old, new))
        return made

    def accept(self, changes: list[Change], step_id: str) -> None:
        self.before.append((step_id, dict(self.tree)))
        for change in changes:
            if change.after is None:
                del self.tree[change.path]
            else:
                self.tree[change.path] = change.after

    @rule(names=st.sets(st.sampled_from(NAMES), min_size=1), remove=st.booleans())
    def change(self, names: set[str], remove: bool) -> None:
        changes = self.changes(names, remove)
        step = self.ledger.apply(changes, Step(kind="rewrite"))
        assert step is not None
        self.accept(changes, step.id)

    @rule(names=st.sets(st.sampled_from(NAMES), min_size=1), at_call=st.integers(1, 120))
    def change_and_die(self, names: set[str], at_call: int) -> None:
        changes = self.changes(names, False)
        count = len(self.ledger.steps())
        run_and_die(lambda: self.ledger.apply(changes, Step(kind="rewrite")), at_call)
        self.ledger.recover()
        steps = self.ledger.steps()
        if len(steps) > count:
            self.accept(changes, steps[-1].id)

    @precondition(lambda self: self.before)
    @rule()
    def roll_back_the_latest(self) -> None:
        done = self.ledger.rollback()
        step_id, self.tree = self.before.pop()
        assert [step.id for step in done.undone] == [step_id]

    @precondition(lambda self: self.before)
    @rule(data=st.data())
    def roll_back_to_any(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.before) - 1))
        done = self.ledger.rollback(self.before[index][0])
        assert [s.id for s in done.undone] == [i for i, _ in reversed(self.before[index:])]
        self.tree = self.before[index][1]
        del self.before[index:]

    @precondition(lambda self: self.before)
    @rule(at_call=st.integers(1, 120))
    def roll_back_and_die(self, at_call: int) -> None:
        count = len(self.ledger.steps())
        run_and_die(self.ledger.rollback, at_call)
        self.ledger.recover()
        if len(self.ledger.steps()) > count:
            _, self.tree = self.before.pop()

    @precondition(lambda self: self.before)
    @rule()
    def roll_back_and_change_ones_mind(self) -> None:
        record = self.ledger.rollback().records[0]
        self.ledger.rollback(record.id)

    @precondition(lambda self: self.before and self.tree)
    @rule(data=st.data())
    def a_foreign_edit_stops_a_rollback(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.tree)))
        (self.root / name).write_bytes(b"foreign")
        touched = {output.path for output in self.ledger.find(self.before[-1][0]).outputs}
        try:
            self.ledger.rollback()
            assert name not in touched
            _, tree = self.before.pop()
            self.tree = tree
        except JoyError:
            assert name in touched
        (self.root / name).write_bytes(self.tree[name])

    @invariant()
    def the_tree_is_the_model(self) -> None:
        found = {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and ".joymigrate" not in path.parts
        }
        assert found == self.tree
        assert [state.tree for state in self.ledger.states()].count("edited") == 0
        latest = self.ledger.latest()
        assert (latest.id if latest else None) == (self.before[-1][0] if self.before else None)


TestHistory = History.TestCase
TestHistory = pytest.mark.dear(TestHistory)
TestHistory.settings = settings(max_examples=6, stateful_step_count=12, deadline=None)
