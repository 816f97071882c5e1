"""Compilation beside the requests: whatever happens to the compiler, eager answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joymigrate.run.serve.ranking import packages, runner
from joymigrate.run.serve.ranking.inputs import draw
from joymigrate.run.serve.ranking.lanes import RankingEngine
from joymigrate.run.serve.ranking.merge import merge
from joymigrate.run.serve.ranking.meters import compilations
from joymigrate.run.serve.ranking.packages import Packages
from joymigrate.run.serve.ranking.program import RankingProgram
from joymigrate.run.serve.ranking.tensors import as_arrays


def wait(compiling: Packages, *states: str, seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while compiling.state not in states and time.monotonic() < end:
        time.sleep(0.05)
    assert compiling.state in states, compiling.reason


def test_a_killed_compiler_is_tried_again_and_given_up(
    din: RankingProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "WAIT_SECONDS", 0.0)
    compiling = Packages(RankingEngine(din), tmp_path)
    compiling.start()
    killed: set[int] = set()
    while compiling.state != "failed":
        process = compiling.process
        if process is not None and process.pid not in killed:
            os.kill(process.pid, signal.SIGKILL)
            killed.add(process.pid)
        time.sleep(0.01)
    assert len(killed) == packages.TRIES
    assert "-9" in compiling.reason
    assert din.compiled is None


@pytest.mark.parametrize("fact", ["torch", "program", "machine"])
def test_a_package_of_other_facts_is_refused(
    din: RankingProgram, tmp_path: Path, fact: str
) -> None:
    compiling = Packages(RankingEngine(din), tmp_path)
    compiling.folder.mkdir(parents=True)
    (compiling.folder / "model.pt2").write_bytes(b"x")
    known = {**compiling.facts, "files": packages.digests(compiling.folder)}
    (compiling.folder / "facts.json").write_text(json.dumps(known))
    assert compiling.usable()
    (compiling.folder / "facts.json").write_text(json.dumps({**known, fact: "other"}))
    assert not compiling.usable()


@pytest.mark.parametrize("damage", [b"", b"whol", b"who1e", b"whole and more"])
def test_a_package_that_is_not_what_was_compiled_is_made_again(
    din: RankingProgram, tmp_path: Path, damage: bytes
) -> None:
    compiling = Packages(RankingEngine(din), tmp_path)
    compiling.folder.mkdir(parents=True)
    (compiling.folder / "model.pt2").write_bytes(b"whole")
    known = {**compiling.facts, "files": packages.digests(compiling.folder)}
    (compiling.folder / "facts.json").write_text(json.dumps(known))
    assert compiling.usable()
    (compiling.folder / "model.pt2").write_bytes(damage)
    assert not compiling.usable()
    assert not list(compiling.folder.iterdir())


def test_a_package_that_cannot_be_loaded_is_compiled_again(
    din: RankingProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling = Packages(RankingEngine(din), tmp_path)
    compiling.folder.mkdir(parents=True)
    (compiling.folder / "model.pt2").write_bytes(b"of another torch")
    known = {**compiling.facts, "files": packages.digests(compiling.folder)}
    (compiling.folder / "facts.json").write_text(json.dumps(known))
    monkeypatch.setattr(compiling, "compile", lambda part="": (1, "none here"))
    monkeypatch.setattr(packages, "WAIT_SECONDS", 0.0)
    compiling.work()
    assert compiling.attempts == packages.TRIES
    assert compiling.state == "failed"
    assert "none here" in compiling.reason


def test_a_package_that_can_be_neither_loaded_nor_replaced_is_tried_once(
    din: RankingProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling = Packages(RankingEngine(din), tmp_path)
    compiling.folder.mkdir(parents=True)
    (compiling.folder / "model.pt2").write_bytes(b"of another torch")
    known = {**compiling.facts, "files": packages.digests(compiling.folder)}
    (compiling.folder / "facts.json").write_text(json.dumps(known))
    monkeypatch.setattr(compiling, "discard", lambda: None)  # as in a folder that is only read
    tried: list[int] = []
    swap = compiling.swap
    monkeypatch.setattr(compiling, "swap", lambda: (tried.append(1), swap()))
    compiling.work()
    assert compiling.state == "failed"
    assert len(tried) == 1


def test_other_weights_have_another_folder(din: RankingProgram, tmp_path: Path) -> None:
    other = RankingProgram(din.name, din.path, din.signature, din.eager, digest="other")
    assert (
        Packages(RankingEngine(din), tmp_path).folder
        != Packages(RankingEngine(other), tmp_path).folder
    )


def test_code_that_differs_from_eager_is_not_used(din: RankingProgram) -> None:
    def wrong(**inputs: Any) -> Any:
        return din.eager(**inputs) + 1e-3

    assert "differs from eager" in packages.disagreement(RankingEngine(din), wrong)
    assert packages.disagreement(RankingEngine(din), din.eager) == ""


def test_the_compilers_of_a_compiler_end_with_it(din: RankingProgram, tmp_path: Path) -> None:
    work = Packages(RankingEngine(din), tmp_path)
    command = ["sh", "-c", "sleep 60 & echo begun; wait"]
    work.process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    with work.process as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        work.stop()
        assert process.stdout.read() == b"", "the child holds the pipe as long as it lives"


def others_go_on(model: RankingProgram) -> None:
    """Other threads take turns while compiled code computes: with Python's lock they would not."""
    big = merge(model.signature, [draw(model.signature, 40, 60, seed) for seed in range(40)])
    done = threading.Event()
    lane = threading.Thread(
        target=lambda: (model.run(big.arrays, model.compiled), done.set()), daemon=True
    )
    turns = 0
    lane.start()
    while not done.is_set():
        turns += 1
        time.sleep(0)
    assert turns > 50


@pytest.mark.slow
def test_a_compiled_package_answers_as_eager_and_follows_the_weights(
    din_path: Path, tmp_path: Path
) -> None:
    from joymigrate.run.serve.ranking.program import load

    model = load(din_path)
    engine = RankingEngine(model)
    before = compilations()
    compiling = Packages(engine, tmp_path)
    compiling.start()
    wait(compiling, "ready", "failed", "refused")
    assert compiling.state == "ready", compiling.reason
    assert isinstance(model.compiled, runner.Unlocked)
    others_go_on(model)
    request = draw(model.signature, 20, 50)
    eager = as_arrays(model.run(request.arrays))[0]
    np.testing.assert_allclose(
        as_arrays(model.run(request.arrays, model.compiled))[0], eager, atol=1e-5
    )
    model.state["items.weight"].mul_(2)
    changed = as_arrays(model.run(request.arrays))[0]
    assert np.abs(changed - eager).max() > 1e-4
    np.testing.assert_allclose(
        as_arrays(model.run(request.arrays, model.compiled))[0], changed, atol=1e-5
    )
    assert compilations() == before
    again = Packages(RankingEngine(model), tmp_path)
    assert again.usable()
