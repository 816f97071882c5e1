"""How a stop is printed: bounded, folded, the same sentence everywhere."""

from __future__ import annotations

from pathlib import Path

from joymigrate.blame.exceptions import Frame, Raised
from joymigrate.blame.judge import judge
from joymigrate.blame.program import HOUSE, Program
from joymigrate.blame.stop import StopEvidence
from joymigrate.blame.text import MOST_BYTES, lines


def test_frames_of_packages_are_counted_and_repeated_ones_folded(tmp_path: Path) -> None:
    own = Frame(str(tmp_path / "tree.py"), 7, "depth", "return depth(node) + 1")
    theirs = [Frame(f"/v/site-packages/torch/nn/m{n}.py", n, "f", "g()") for n in range(9)]
    chain = (Raised("RecursionError", "too deep", (own,) * 900 + tuple(theirs)),)
    stop = judge(StopEvidence(Program(tmp_path), chain, on_chip=False))
    assert stop.frames == (
        "tree.py:7 return depth(node) + 1  × 900",
        "… 9 × torch; torch/nn/m8.py:8 g()",
    )


def test_frames_of_ours_are_not_shown(tmp_path: Path) -> None:
    own = Frame(str(tmp_path / "train.py"), 3, "main", "model(x)")
    theirs = Frame("/v/site-packages/torch/nn/m.py", 1, "f", "g()")
    ours = Frame(f"{HOUSE}/run/door/mode.py", 9, "call", "return func(*args, **kwargs)")
    chain = (Raised("RuntimeError", "sizes differ", (own, theirs, ours)),)
    stop = judge(StopEvidence(Program(tmp_path), chain, on_chip=False))
    assert stop.frames == ("train.py:3 model(x)", "… 1 × torch; torch/nn/m.py:1 g()")
    chain = (Raised("RuntimeError", "sizes differ", (own, ours, ours)),)
    stop = judge(StopEvidence(Program(tmp_path), chain, on_chip=False))
    assert stop.frames == ("train.py:3 model(x)",)


def test_a_stop_prints_at_most_two_kilobytes(tmp_path: Path) -> None:
    frames = tuple(Frame(str(tmp_path / f"m{n}.py"), n, "f", "x" * 100) for n in range(200))
    chain = (Raised("ValueError", "long " * 400, frames),)
    stop = judge(StopEvidence(Program(tmp_path), chain, on_chip=False))
    told = "\n".join(lines(stop.document(), "rehearse/log.txt"))
    assert len(told.encode()) <= MOST_BYTES
    assert "m199.py:199" in told  # the frame that raised is kept
    assert told.endswith("all of it: rehearse/log.txt")
