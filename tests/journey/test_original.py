"""The original comes back out of a rewritten project, without what the user changed since."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.journey.original import (
    keep_first,
    line_before,
    map_line,
    restore_original,
    rewrites,
)
from joymigrate.ledger import Change, Ledger, Step
from joymigrate.rewrite.diff import write_unified

BEFORE = (
    b"import torch\n\n\ndef run(x):\n    y = x.cuda()\n    z = y + 1\n    w = z * 2\n    return w\n"
)
AFTER = BEFORE.replace(b"import torch\n", b"import torch\nimport jm\n").replace(
    b"x.cuda()", b"x.to(jm.device())"
)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A project below a repository's top; one file was rewritten and one was made."""
    project = tmp_path / "top" / "project"
    (project / "data").mkdir(parents=True)
    (project / "run.py").write_bytes(BEFORE)
    (project / "other.py").write_text("x = 1\n")
    (project / "data" / "a.bin").write_bytes(b"\0" * 10)
    (tmp_path / "top" / "pyproject.toml").touch()
    ledger = Ledger.of(project)
    changes = [Change("project/run.py", BEFORE, AFTER), Change("project/jm.py", None, b"j = 1\n")]
    patch = write_unified("project/run.py", AFTER, BEFORE, 0o644)
    ledger.apply(changes, Step(kind="rewrite", chip="ascend"), {"reverse.patch": patch})
    return ledger


def test_every_rewritten_file_comes_back(ledger: Ledger, tmp_path: Path) -> None:
    project, copy = ledger.root / "project", tmp_path / "copy"
    steps = rewrites(ledger, project)
    assert [step.id for step in steps] == ["0001"]
    restore_original(ledger, steps, project, copy, tmp_path / "none")
    assert (copy / "run.py").read_bytes() == BEFORE
    assert not (copy / "jm.py").exists()
    assert (copy / "other.py").read_text() == "x = 1\n"
    assert (copy / "data").is_symlink()
    assert (project / "run.py").read_bytes() == AFTER


def test_an_edit_of_a_rewritten_file_is_not_in_the_original(ledger: Ledger, tmp_path: Path) -> None:
    project, copy = ledger.root / "project", tmp_path / "copy"
    for edited in (
        AFTER.replace(b"return w", b"return w + 1"),
        AFTER.replace(b"z = y + 1", b"z = y.to(jm.device()) + 1"),  # with the rewrite's import
        AFTER.replace(b"jm.device()", b"'cpu'"),
    ):
        (project / "run.py").write_bytes(edited)
        restore_original(ledger, rewrites(ledger, project), project, copy, tmp_path / "none")
        assert (copy / "run.py").read_bytes() == BEFORE


def test_an_edit_of_another_file_is_not_in_the_original_that_was_kept(
    ledger: Ledger, tmp_path: Path
) -> None:
    project, copy, first = (ledger.root / "project", tmp_path / "copy", tmp_path / "first")
    steps = rewrites(ledger, project)
    (project / "run.py").write_bytes(BEFORE)
    (project / "jm.py").unlink()
    keep_first(project, first)
    (project / "run.py").write_bytes(AFTER)
    (project / "jm.py").write_bytes(b"j = 1\n")
    (project / "other.py").write_text("x = 2\n")
    (project / "new.py").write_text("y = 3\n")
    restore_original(ledger, steps, project, copy, first)
    assert (copy / "other.py").read_text() == "x = 1\n"
    assert (copy / "run.py").read_bytes() == BEFORE
    assert (copy / "new.py").read_text() == "y = 3\n"
    assert not (copy / "jm.py").exists()
    assert (project / "data" / "a.bin").read_bytes() == b"\0" * 10


def test_what_was_kept_of_another_start_is_not_taken(ledger: Ledger, tmp_path: Path) -> None:
    project, copy, first = (ledger.root / "project", tmp_path / "copy", tmp_path / "first")
    keep_first(project, first)
    (first / "run.py").write_text("other = 1\n")
    (first / "other.py").write_text("x = 0\n")
    restore_original(ledger, rewrites(ledger, project), project, copy, first)
    assert (copy / "run.py").read_bytes() == BEFORE
    assert (copy / "other.py").read_text() == "x = 1\n"


def test_a_rewrite_that_was_rolled_back_does_not_count(ledger: Ledger) -> None:
    ledger.rollback()
    assert rewrites(ledger, ledger.root / "project") == []
    assert rewrites(ledger, ledger.root / "elsewhere") == []


def test_lines_are_told_as_they_were(ledger: Ledger) -> None:
    project = ledger.root / "project"
    steps = rewrites(ledger, project)
    lines = [line_before(ledger, steps, project, "run.py", n) for n in (1, 3, 5, 6, 9)]
    assert lines == [1, 2, 4, 5, 8]
    assert line_before(ledger, steps, project, "other.py", 7) == 7


def test_a_line_that_is_new_points_to_where_it_was_put() -> None:
    assert map_line([b"a", b"b"], [b"a", b"new", b"b"], 2) == 2
