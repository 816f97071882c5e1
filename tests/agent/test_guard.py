"""The guard: cheats are refused by name, patches of honest people pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from joymigrate import api
from joymigrate.agent.patches.facts import CodeFact, functions_behind, read_facts
from joymigrate.agent.patches.guard import PatchScope, judge_text

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
SAMPLE = PROGRAMS / "sample"
CHEATS = yaml.safe_load((HERE / "cheats.yaml").read_text(encoding="utf-8"))
HONEST = yaml.safe_load((HERE / "honest.yaml").read_text(encoding="utf-8"))
DRAWN = yaml.safe_load((HERE / "drawn.yaml").read_text(encoding="utf-8"))
# The line at which each program of that catalogue stops on the simulated chip.
STOPS = {
    "capability": "get_device_capability(0)",
    "dims": "x.permute(",
    "dynamic": "net = ",
    "namecheck": "raise RuntimeError",
}
# What no text shows: only running it does, which tests/agent/test_rounds.py has.
RUN = {"other-values"}


@pytest.fixture(scope="module")
def tree() -> dict[str, bytes]:
    """The sample as the rewrite leaves it: the line that asks for the capability is not moved."""
    return rewritten(SAMPLE)


def rewritten(program: Path) -> dict[str, bytes]:
    files = {
        path.relative_to(program).as_posix(): path.read_bytes()
        for path in program.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    for patch in api.rewrite(program, style="agnostic").patches:
        files[patch.path.relative_to(program).as_posix()] = patch.after or b""
    return files


@pytest.fixture(scope="module")
def scope(tree: dict[str, bytes]) -> PatchScope:
    """What the task allows: the file of the stop with its function, and the kernels beside."""
    return PatchScope({"train.py": stop_in(tree, "get_device_capability()"), "kernels.py": ()})


def stop_in(tree: dict[str, bytes], code: str) -> tuple[str, ...]:
    """The functions of `train.py` behind the first line with some code."""
    text = tree["train.py"].decode()
    line = next(n for n, one in enumerate(text.splitlines(), 1) if code in one)
    return functions_behind(text, line)


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
    tree: dict[str, bytes], scope: PatchScope, one: dict[str, Any]
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
def test_an_honest_patch_passes(
    tree: dict[str, bytes], scope: PatchScope, one: dict[str, Any]
) -> None:
    assert judge_text(tree, patched(tree, one["edits"]), scope) == []


@pytest.fixture(scope="module")
def drawn() -> dict[str, dict[str, bytes]]:
    return {name: rewritten(PROGRAMS / name) for name in STOPS}


@pytest.mark.parametrize("one", DRAWN, ids=lambda one: one["patch"])
def test_a_drawn_patch_is_judged_as_somebody_else_wrote(
    drawn: dict[str, dict[str, bytes]], one: dict[str, Any]
) -> None:
    files = drawn[one["program"]]
    scope = PatchScope({"train.py": stop_in(files, STOPS[one["program"]])})
    names = {refusal.name for refusal in judge_text(files, patched(files, one["edits"]), scope)}
    assert one["refused"] in names if one["refused"] else not names


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ('x.to("cpu" if not torch.cuda.is_available() else x.device)', "host"),
        ('x.to(torch.cuda.is_available() and "cuda" or "cpu")', "host"),
        ('x.to("cpu").sum() > 0', "host"),
        ('if x.device.type != "cuda":\n    x = x.to("cpu")', "host"),
        ('torch.accelerator.current_accelerator() or torch.device("cpu")', "choice"),
        ('if asked is Backend.CPU:\n    place = torch.device("cpu")', "choice"),
        ('x.device.type in ("cuda", "cpu")', "choice"),
    ],
)
def test_the_host_is_a_choice_unless_the_origin_decides(code: str, kind: str) -> None:
    assert read_facts(code, ()).all[CodeFact(kind, "cpu")] == 1


def test_the_function_around_a_line_is_found() -> None:
    text = (
        "x = 1\nclass A:\n    def f(self):\n        def g():\n            pass\n        return g\n"
    )
    found = [functions_behind(text, line)[0] for line in (1, 3, 5, 6)]
    assert found == ["", "A.f", "A.f.g", "A.f"]


def test_a_function_that_made_a_value_of_the_line_may_be_mended() -> None:
    text = (
        "def make():\n    return 1\n\ndef other():\n    return 2\n\n"
        "def main():\n    made = make()\n    beside = other()\n    use(made)\n"
    )
    assert functions_behind(text, 10) == ("main", "make")


def test_facts_don_t_count_blanks_and_comments() -> None:
    one, other = read_facts("x = f(1)\n", ()), read_facts("x  =  f( 1 )  # why\n", ())
    assert one.shape == other.shape
    assert one.all == other.all


def test_broken_code_is_refused(tree: dict[str, bytes], scope: PatchScope) -> None:
    found = judge_text(tree, {"train.py": b"def ("}, scope)
    assert [one.name for one in found] == ["broken-code"]
