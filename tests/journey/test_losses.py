"""Loss curves are read out of what programs print."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.journey.losses import losses, resolutions, write_curve


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
        ("{'loss': '1.25', 'epoch': '1.0'}", (0, 1.25)),
        ("| loss      | 0.998    |", (0, 0.998)),
        ("Steps : 5, Gen Loss Total : 85.123, Mel-Spec. Error : 0.9", (5, 85.123)),
        ("Finished training it 2/8 of epoch 0, 67.31 ms/it, loss 0.081568", (2, 0.081568)),
        ("Epoch [1/5], Step [100/600], Loss: 0.33", (100, 0.33)),
        ("loss: tensor(2.31, device='cuda:0', grad_fn=<DivBackward0>)", (0, 2.31)),
        (" iteration  7/ 10 | lm loss: 1.08E+01 | loss scale: 1.0 |", (7, 10.8)),
        (" 30%|###   | 3/10 [00:01<00:02,  2.5it/s, loss=0.33]", (3, 0.33)),
        ("Loss_D: 0.5 Loss_G: 2.1", (0, 0.5)),
        ("\x1b[1mloss\x1b[0m: 0.5", (0, 0.5)),
    ],
)
def test_the_usual_forms(line: str, found: tuple[int, float]) -> None:
    [(step, loss)] = losses([line])
    assert step == found[0]
    assert loss == pytest.approx(found[1], nan_ok=True)


@pytest.mark.parametrize(
    "line",
    [
        "lossless codec 3",
        "gloss 1.0",
        "loss function: mse",
        "done",
        "loss scale: 65536",
        "loss_weight=0.5",
        "the loss of 3 packets",
        "/opt/lib/torch/nn/modules/loss.py:48: UserWarning: size_average is deprecated",
        "loss.py:48: FutureWarning: loss=0.5 is the default",
        "C:\\train\\loss.py:48:7: E1",
        '  File "my_loss.py", line 48, in forward',
    ],
)
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
    found = [{key: row[key] for key in ("step", "loss")} for row in rows]
    assert found == [{"step": 0, "loss": 2.0}, {"step": 1, "loss": 1.0}]
    assert {row["loss_resolution"] for row in rows} == {0.1}


def test_the_longest_curve_that_is_no_test_is_taken() -> None:
    lines = ["step 0: train loss 3.3433, val loss 3.3410"]
    lines += [f"iter {n}: loss {3 - n}, time 12ms" for n in range(3)]
    lines += [f"val loss {n}" for n in range(9)]
    assert losses(lines) == [(0, 3.0), (1, 2.0), (2, 1.0)]


def test_a_table_with_a_name_in_each_row() -> None:
    table = ["| loss     | 1        |", "| loss_q0  | 0.969    |", "| step     | 0        |"]
    assert losses(table * 2) == [(0, 1.0), (1, 1.0)]


def test_steps_that_begin_anew_with_an_epoch_go_on() -> None:
    lines = [f"epoch {e} batch {b}/2 loss 1.{e}{b}" for e in range(2) for b in (1, 2)]
    assert losses(lines) == [(1, 1.01), (2, 1.02), (4, 1.11), (5, 1.12)]


def test_the_last_that_a_progress_bar_says_of_a_step_counts() -> None:
    bar = "{n}/3 [00:0{n}<00:02, 2.5it/s, loss={loss}]"
    text = "\r".join(
        bar.format(n=n, loss=loss) for n, loss in ((0, 0.9), (1, 0.9), (1, 0.8), (3, 0.6))
    )
    assert losses(text.split("\r")) == [(0, 0.9), (1, 0.8), (3, 0.6)]


def test_steps_that_repeat_without_a_bar_are_counted() -> None:
    assert losses([f"step 1 loss {n}.5" for n in range(3)]) == [(0, 0.5), (1, 1.5), (2, 2.5)]


@pytest.mark.parametrize(
    ("texts", "sizes"),
    [
        (["3.3433", "0.0012"], [1e-4, 1e-4]),  # decimals
        (["1", "0.969", "1.02"], [1e-2, 1e-3, 1e-2]),  # digits, without zeros at the end
        (["2.5e-3"], [1e-4]),
        (["nan", "1.5"], [1e-1, 1e-1]),
    ],
)
def test_the_last_digit_that_is_printed(texts: list[str], sizes: list[float]) -> None:
    assert resolutions([float(text) for text in texts], texts) == pytest.approx(sizes)
