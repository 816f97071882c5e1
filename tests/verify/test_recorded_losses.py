"""The losses of recorded steps: shares of processes add up."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from joymigrate.verify.bundle.table import RecordTable
from joymigrate.verify.recorded_losses import losses


def rank(values: Sequence[float], spread: str = "") -> Any:
    """What one process recorded: a loss per step."""
    tables = {
        step: RecordTable(
            step, ["loss:"], [0], ["loss"], [""], ["float32"], [(1,)], [spread],
            np.array([[value, value, value, abs(value)]], np.float32),
            np.zeros((1, 64), np.float32),
        )
        for step, value in enumerate(values)
    }  # fmt: skip
    return SimpleNamespace(steps=list(tables), table=tables.__getitem__)


def bundle(*ranks: Any) -> Any:
    return SimpleNamespace(ranks=list(ranks))


def test_the_shares_of_two_processes_add_up_to_the_loss_of_one() -> None:
    two = bundle(rank([0.5, 0.3], "partial"), rank([0.7, 0.2], "partial"))
    assert losses(two)[0] == pytest.approx({0: 1.2, 1: 0.5})


def test_a_step_that_one_process_did_not_record_is_not_compared() -> None:
    two = bundle(rank([0.5, 0.3, 0.1], "partial"), rank([0.7, 0.2], "partial"))
    assert sorted(losses(two)[0]) == [0, 1]
