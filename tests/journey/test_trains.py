"""Whether a program trains at all: without gradients there is no loss to ask for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from joymigrate.journey.steps import coverage
from joymigrate.journey.steps.train import trains


def journey(folder: Path, phases: tuple[str, ...], verdict: str = "pass") -> Any:
    """A journey whose coverage step recorded operators of these phases."""
    trace = folder / coverage.TRACE
    trace.parent.mkdir(parents=True)
    lines = [{"schema": "joymigrate.trace/1"}, *({"kind": "op", "phase": p} for p in phases)]
    trace.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    return SimpleNamespace(
        before={"coverage": SimpleNamespace(verdict=verdict)}, path=lambda name: folder / name
    )


@pytest.mark.parametrize(
    ("phases", "verdict", "expected"),
    [
        (("forward", "other"), "pass", False),
        (("forward", "backward", "other"), "pass", True),
        (("forward", "optimiser"), "pass", True),
        (("forward",), "inconclusive", True),  # it ended early: what came after is not known
    ],
)
def test_gradients_tell_whether_a_program_trains(
    tmp_path: Path, phases: tuple[str, ...], verdict: str, expected: bool
) -> None:
    assert trains(journey(tmp_path, phases, verdict)) is expected


def test_a_program_that_was_not_recorded_may_train(tmp_path: Path) -> None:
    at: Any = SimpleNamespace(before={}, path=lambda name: tmp_path / name)
    assert trains(at) is True
