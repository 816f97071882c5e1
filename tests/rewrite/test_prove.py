"""A rewrite is proven by the project's own program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.errors import JoyError
from joymigrate.model import Scan, Style
from joymigrate.rewrite import scan
from joymigrate.rewrite.prove import harmless, prove
from tests.ledger.trees import write_tree

# The program checks its own source, so one edit changes what it tells.
PROGRAM = b"""\
import inspect, torch

def strict(x):
    return x.is_cuda

print("loss:", 1.5 if "is_cuda" in inspect.getsource(strict) else 2.5)
if torch.cuda.is_available():
    print("accelerator")
"""


def found(root: Path) -> Scan:
    """A scan in the style that runs everywhere."""
    return scan([root], chip=chips.target("ascend"), origin=chips.origin(), style=Style.AGNOSTIC)


@pytest.mark.slow
def test_the_edit_that_changes_the_program_is_found_and_left_out(tmp_path: Path) -> None:
    write_tree(tmp_path, {"main.py": PROGRAM})
    done = prove(found(tmp_path), [sys.executable, "main.py"], unsafe=False, timeout_s=120)
    assert done is not None
    after = next(p.after for p in done.patches if p.path.name == "main.py")
    assert after is not None
    assert b"x.is_cuda" in after
    assert b"jm.device_module().is_available()" in after
    assert done.left == ("main.py:4:12",)


@pytest.mark.slow
def test_a_program_that_differs_from_run_to_run_proves_nothing(tmp_path: Path) -> None:
    text = b"import time, torch\nprint('loss', time.time_ns())\ntorch.cuda.empty_cache()\n"
    write_tree(tmp_path, {"main.py": text})
    with pytest.raises(JoyError, match="two runs of the unchanged program differ in losses"):
        prove(found(tmp_path), [sys.executable, "main.py"], unsafe=False, timeout_s=60)


def harmful(*groups: str) -> Callable[[Sequence[str]], tuple[str, ...]]:
    """What `prove` asks a run: here a set of edits differs that holds all letters of a group."""
    return lambda tried: ("tests",) if any(set(each) <= set(tried) for each in groups) else ()


def test_harm_is_found_by_halves_and_the_rest_is_kept() -> None:
    assert harmless("abcdefgh", harmful("c", "g")) == list("abdefh")
    assert harmless("abcdefgh", harmful("ch")) == list("abcdefg")  # only together
    assert harmless("abcd", harmful("a", "b", "c", "d")) == []


def test_what_differs_once_only_is_blamed_on_no_edit() -> None:
    answers = iter([(), ()])  # of "a", and of "ab", which differed before
    with pytest.raises(JoyError, match=r"with the same edits \(b\) differ in results"):
        harmless("ab", lambda tried: next(answers))
