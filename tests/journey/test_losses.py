"""Loss curves are read out of what programs print."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.journey.losses import losses, write_curve


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("step 3 loss 1.25", (3, 1.25)),
        ("Step: 3, Loss: 1.25", (3, 1.25)),
        ("{'loss': 1.25, 'epoch': 1.0}", (0, 1.25)),
        ("iter 100: loss 2.5e-3, time 12ms", (100, 2.5e-3)),
        ("iteration=7 train_loss=.5", (7, 0.5)),
        ("Train Epoch: 1 [0/60 (0%)]\tLoss: 2.300", (0, 2.3)),
        ("step 1 loss nan", (1, math.nan)),
    ],
)
def test_the_usual_forms(line: str, found: tuple[int, float]) -> None:
    [(step, loss)] = losses([line])
    assert step == found[0]
    assert loss == pytest.approx(found[1], nan_ok=True)


@pytest.mark.parametrize("line", ["lossless codec 3", "gloss 1.0", "loss function: mse", "done"])
def test_lines_without_a_loss(line: str) -> None:
    assert losses([line]) == []


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20))
def test_every_finite_number_is_read_back(values: list[float]) -> None:
    lines = [f"step {n} loss {value!r}" for n, value in enumerate(values)]
    assert losses(lines) == list(enumerate(values))


def test_a_log_becomes_a_curve(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(b"hello\nstep 0 loss 2.0\n\xff\xfe\nstep 1 loss 1.0\n")
    assert write_curve(log, tmp_path / "curve.jsonl") == 2
    rows = [json.loads(row) for row in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert rows == [{"step": 0, "loss": 2.0}, {"step": 1, "loss": 1.0}]
