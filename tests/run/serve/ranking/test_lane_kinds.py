"""Lanes as processes, lanes chosen by measurement, and their benchmark."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joymigrate.cli._main import run
from joymigrate.run.serve.ranking import lane_bench, program
from joymigrate.run.serve.ranking.inputs import draw
from joymigrate.run.serve.ranking.lanes import PROCESSES, Engine
from joymigrate.run.serve.ranking.tensors import as_arrays


def ranked(engine: Engine, *requests: Any) -> list[Any]:
    async def ask() -> list[Any]:
        return await asyncio.gather(*(engine.rank(one) for one in requests))

    return asyncio.run(ask())


@pytest.mark.slow
def test_processes_answer_as_threads_see_new_weights_and_outlive_a_kill(din_path: Path) -> None:
    model = program.load(din_path)
    engine = Engine(model, lanes=1, kind=PROCESSES)
    engine.start()
    try:
        request = draw(model.signature, 8, 20)
        before = as_arrays(model.run(request.arrays))[0]
        assert np.array_equal(ranked(engine, request)[0].outputs[0], before)
        model.state["items.weight"].mul_(-1)
        after = as_arrays(model.run(request.arrays))[0]
        assert not np.array_equal(after, before)
        assert np.array_equal(ranked(engine, request)[0].outputs[0], after)
        os.kill(engine.workers[0].process.pid, signal.SIGKILL)
        assert np.array_equal(ranked(engine, request)[0].outputs[0], after)
        assert engine.workers[0].restarts == 1
    finally:
        engine.close()
    assert not engine.workers[0].process.is_alive()


@pytest.mark.dear
def test_the_number_of_lanes_is_measured(
    din: program.Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {1: 100.0, 2: 190.0, 4: 200.0, 8: 90.0}
    monkeypatch.setattr(lane_bench, "rate_of", lambda model, arrays, lanes: rates[lanes])
    assert lane_bench.choose(din, most=8) == 2  # four gain less than a tenth over two
    assert lane_bench.choose(din, most=1) == 1
    monkeypatch.undo()
    monkeypatch.setattr(lane_bench, "TRY_SECONDS", 0.05)
    assert lane_bench.choose(din, most=2) in (1, 2)


@pytest.mark.slow
def test_the_benchmark_prints_a_row_for_each_setting(
    din_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["serve", "lanes", "bench", str(din_path), "--lanes", "1,2", "--batch", "1,4",
             "--seconds", "0.3", "--device", "cpu", "--format", "json"]  # fmt: skip
    assert run(asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "joymigrate.lanes/1"
    assert [(row["lanes"], row["batch"]) for row in found["rows"]] == [
        (1, 1),
        (1, 4),
        (2, 1),
        (2, 4),
    ]
    assert all(row["requests_per_s"] > 0 and row["p99_ms"] > 0 for row in found["rows"])
    assert found["rows"][0]["merged"] == 1
    assert run(["serve", "lanes", "bench", str(din_path), "--lanes", "0"]) == 2
