"""The plan of an unchanged folder is read from the cache, and computed again after any change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.rewrite.switch import plan
from joymigrate.rewrite.switch.cache import cache_folder
from joymigrate.rewrite.switch.edit_cache import Edits, kept_or
from tests.rewrite.projects import write

SHOW = "NAME = 'CUDA_VISIBLE_DEVICES'\n"


class Counted:
    """Edits, and how often they were asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.times = 0

    def compute(self) -> Edits:
        self.times += 1
        return {"a.py": {"sha256": "0", "edits": [[0, 1, str(self.times)]]}}

    def ask(self, *leave: str) -> Edits:
        pair = (chips.target(None), chips.origin())
        return kept_or(self.compute, self.folder, chips=pair, version=None, leave=leave)


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path / "project", {"a.py": SHOW, "b.py": "x = 1\n"})
    return Counted(tmp_path / "project")


def test_an_unchanged_folder_is_not_scanned_again(counted: Counted) -> None:
    assert counted.ask() == counted.ask()
    assert counted.times == 1


def test_other_rules_are_another_question(counted: Counted) -> None:
    counted.ask()
    counted.ask("JM160")
    assert counted.times == 2


@pytest.mark.parametrize("change", ["text", "time", "new file", "file gone"])
def test_any_change_is_scanned_again(counted: Counted, change: str) -> None:
    counted.ask()
    path = counted.folder / "b.py"
    if change == "text":
        path.write_text("x = 22\n")
    elif change == "time":
        os.utime(path, ns=(1, 1))
    elif change == "new file":
        (counted.folder / "c.py").write_text("")
    else:
        path.unlink()
    counted.ask()
    assert counted.times == 2


def test_a_damaged_cache_is_no_error(counted: Counted) -> None:
    counted.ask()
    (kept,) = cache_folder().glob("plan-*.json")
    kept.write_text('{"stamp": ')
    counted.ask()
    assert counted.times == 2
    kept.write_text("[]")
    assert counted.ask() == {"a.py": {"sha256": "0", "edits": [[0, 1, "3"]]}}


def test_the_plan_from_the_cache_is_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path / "project", {"pyproject.toml": "", "a.py": SHOW})

    def made() -> dict[str, object]:
        command = [str(tmp_path / "project" / "a.py")]
        return plan.make(command, chip=chips.target(None), origin=chips.origin())

    first = made()
    assert first["files"]
    assert made() == first
