"""Lanes as processes, and lanes chosen by measurement."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joymigrate.run.serve.ranking import lane_count, program
from joymigrate.run.serve.ranking.inputs import draw
from joymigrate.run.serve.ranking.lanes import PROCESSES, RankingEngine
from joymigrate.run.serve.ranking.tensors import as_arrays


def ranked(engine: RankingEngine, *requests: Any) -> list[Any]:
    async def ask() -> list[Any]:
        return await asyncio.gather(*(engine.rank(one) for one in requests))

    return asyncio.run(ask())


@pytest.mark.slow
def test_processes_answer_as_threads_see_new_weights_and_outlive_a_kill(din_path: Path) -> None:
    model = program.load(din_path)
    engine = RankingEngine(model, lanes=1, kind=PROCESSES)
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
    din: program.RankingProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {1: 100.0, 2: 190.0, 4: 200.0, 8: 90.0}
    monkeypatch.setattr(lane_count, "rate_of", lambda model, arrays, lanes: rates[lanes])
    assert lane_count.choose(din, most=8) == 2  # four gain less than a tenth over two
    assert lane_count.choose(din, most=1) == 1
    monkeypatch.undo()
    monkeypatch.setattr(lane_count, "TRY_SECONDS", 0.05)
    assert lane_count.choose(din, most=2) in (1, 2)
