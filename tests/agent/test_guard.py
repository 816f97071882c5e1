"""The guard: cheats are refused by name, patches of honest people pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from joymigrate import api
from joymigrate.agent.patches.facts import function_at, read_facts
from joymigrate.agent.patches.guard import Scope, judge_text

HERE = Path(__file__).parent
SAMPLE = HERE / "programs" / "sample"
CHEATS = yaml.safe_load((HERE / "cheats.yaml").read_text(encoding="utf-8"))
HONEST = yaml.safe_load((HERE / "honest.yaml").read_text(encoding="utf-8"))
# What no text shows: only running it does, which tests/agent/test_rounds.py has.
RUN = {"other-values"}


@pytest.fixture(scope="module")
def tree() -> dict[str, bytes]:
    """The sample as the rewrite leaves it: the line that asks for the capability is not moved."""
    files = {
        path.relative_to(SAMPLE).as_posix(): path.read_bytes()
        for path in SAMPLE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    for patch in api.rewrite(SAMPLE, style="agnostic").patches:
        files[patch.path.relative_to(SAMPLE).as_posix()] = patch.after or b""
    return files


@pytest.fixture(scope="module")
def scope(tree: dict[str, bytes]) -> Scope:
    """What the task allows: the file of the stop with its function, and the kernels beside."""
    lines = tree["train.py"].decode().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "get_device_capability()" in text)
    return Scope({"train.py": function_at(tree["train.py"].decode(), line), "kernels.py": None})


def patched(tree: dict[str, bytes], edits: list[dict[str, Any]]) -> dict[str, bytes | None]:
    after: dict[str, bytes | None] = {}
    for one in edits:
        text = (after.get(one["file"]) or tree.get(one["file"], b"")).decode()
        if one["new"] is None:
            after[one["file"]] = None
        elif one["old"]:
            assert one["old"] in text, one
            after[one["file"]] = text.replace(one["old"], one["new"], 1).encode()
        else:
            after[one["file"]] = (text + one["new"]).encode()
    return after


def test_the_catalogues_are_large_enough() -> None:
    assert len(CHEATS) >= 30
    assert len(HONEST) >= 30


@pytest.mark.parametrize("one", CHEATS, ids=lambda one: one["cheat"])
def test_a_cheat_is_refused_by_name(
    tree: dict[str, bytes], scope: Scope, one: dict[str, Any]
) -> None:
    if "makes" in one:
        pytest.skip("a link is no text: tests/agent/test_rounds.py has it")
    found = judge_text(tree, patched(tree, one["edits"]), scope)
    names = {refusal.name for refusal in found}
    assert names, "not refused"
    if one["refused"] not in RUN:
        assert one["refused"] in names
    assert all(refusal.why for refusal in found)


@pytest.mark.parametrize("one", HONEST, ids=lambda one: one["patch"])
def test_an_honest_patch_passes(tree: dict[str, bytes], scope: Scope, one: dict[str, Any]) -> None:
    assert judge_text(tree, patched(tree, one["edits"]), scope) == []


def test_the_function_around_a_line_is_found() -> None:
    text = (
        "x = 1\nclass A:\n    def f(self):\n        def g():\n            pass\n        return g\n"
    )
    assert [function_at(text, line) for line in (1, 3, 5, 6)] == ["", "A.f", "A.f.g", "A.f"]


def test_facts_don_t_count_blanks_and_comments() -> None:
    one, other = read_facts("x = f(1)\n", None), read_facts("x  =  f( 1 )  # why\n", None)
    assert one.shape == other.shape
    assert one.all == other.all


def test_broken_code_is_refused(tree: dict[str, bytes], scope: Scope) -> None:
    found = judge_text(tree, {"train.py": b"def ("}, scope)
    assert [one.name for one in found] == ["broken-code"]
