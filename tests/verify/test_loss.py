"""Loss curves: what is close enough, since which step they part, and odd files."""

from __future__ import annotations

import json
import math
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.verify.loss import LossComparison, compare, document, verdict
from joymigrate.verify.loss_curves import read_curves
from joymigrate.verify.model import Outcome, RecordStatus, Verdict
from joymigrate.verify.tolerance import Tolerance


def curve(folder: Path, name: str, change: Callable[[int, float], float]) -> Path:
    rows = [{"step": i, "loss": 2 + 8 * math.exp(-i / 100), "grad_norm": 1.0} for i in range(500)]
    lines = [{**row, "loss": change(int(row["step"]), row["loss"])} for row in rows]
    path = folder / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def noisy(seed: int, size: float) -> Callable[[int, float], float]:
    rng = random.Random(seed)
    return lambda step, loss: loss * (1 + rng.gauss(0, size))


def run(
    base: Path, target: Path, *envelope: Path, **options: Any
) -> tuple[LossComparison, Verdict]:
    limits = Tolerance.of(None)
    sides = read_curves(base), read_curves(target)
    found = compare(*sides, [read_curves(path) for path in envelope], tolerance=limits, **options)
    return found[0], verdict(found, limits, 500, 500)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return curve(tmp_path, "base.jsonl", lambda step, loss: loss)


@pytest.mark.parametrize(
    ("offset", "outcome", "status"),
    [
        (0.0, Outcome.PASS, RecordStatus.PASS),
        (0.009, Outcome.PASS, RecordStatus.PASS),
        (0.015, Outcome.PASS, RecordStatus.WARN),
        (0.03, Outcome.FAIL, RecordStatus.FAIL),
    ],
)
def test_the_mean_relative_error_decides(
    tmp_path: Path, base: Path, offset: float, outcome: Outcome, status: RecordStatus
) -> None:
    target = curve(tmp_path, "target.jsonl", lambda step, loss: loss * (1 + offset))
    found, judged = run(base, target)
    assert (judged.verdict, found.status) == (outcome, status)
    assert found.mean_relative == pytest.approx(offset)


def test_the_first_step_outside_the_envelope_is_named(tmp_path: Path, base: Path) -> None:
    again = curve(tmp_path, "again.jsonl", noisy(1, 0.002))
    target = curve(tmp_path, "target.jsonl", lambda s, loss: loss * (1 + max(0, s - 200) * 0.0005))
    found, judged = run(base, target, again)
    assert judged.verdict is Outcome.FAIL
    assert found.first_outside is not None
    assert 205 <= found.first_outside <= 235  # where the drift passes twice the noise's 0.7 %
    assert judged.first_divergence is not None
    assert judged.first_divergence.step == found.first_outside


def test_noise_like_the_baselines_own_passes_even_when_large(tmp_path: Path, base: Path) -> None:
    again = curve(tmp_path, "again.jsonl", noisy(1, 0.05))
    target = curve(tmp_path, "target.jsonl", noisy(2, 0.05))
    assert run(base, target)[1].verdict is Outcome.FAIL
    assert run(base, target, again)[1].verdict is Outcome.PASS


def test_a_loss_that_ends_in_nan_fails_at_that_step(tmp_path: Path, base: Path) -> None:
    target = curve(tmp_path, "target.jsonl", lambda s, loss: loss if s < 300 else math.nan)
    found, judged = run(base, target)
    assert (judged.verdict, found.status) == (Outcome.FAIL, RecordStatus.NAN_MISMATCH)
    assert judged.first_divergence is not None
    assert (judged.first_divergence.step, judged.first_divergence.cause) == (300, "overflow")


def test_nan_on_both_sides_is_no_difference(tmp_path: Path) -> None:
    both = curve(tmp_path, "a.jsonl", lambda s, loss: math.nan if s == 7 else loss)
    assert run(both, both)[1].verdict is Outcome.PASS


def test_a_small_steady_bias_is_noted(tmp_path: Path, base: Path) -> None:
    target = curve(tmp_path, "target.jsonl", lambda s, loss: loss * 1.001)
    found, judged = run(base, target)
    assert judged.verdict is Outcome.PASS
    assert "above the baseline in 500 of 500" in found.notes[0]


def test_averaging_takes_the_jumps_out(tmp_path: Path, base: Path) -> None:
    target = curve(tmp_path, "target.jsonl", noisy(3, 0.03))
    assert run(base, target)[1].verdict is Outcome.FAIL
    assert run(base, target, smooth=50)[1].verdict is Outcome.PASS


def test_few_common_steps_are_inconclusive(tmp_path: Path, base: Path) -> None:
    short = tmp_path / "short.jsonl"
    short.write_text("".join(base.read_text().splitlines(keepends=True)[:100]))
    assert run(base, short)[1].verdict is Outcome.INCONCLUSIVE


def test_a_gradient_norm_warns_but_does_not_fail(tmp_path: Path, base: Path) -> None:
    target = tmp_path / "target.jsonl"
    target.write_text(base.read_text().replace('"grad_norm": 1.0', '"grad_norm": 1.5'))
    limits = Tolerance.of(None)
    found = compare(read_curves(base), read_curves(target), tolerance=limits)
    judged = verdict(found, limits, 500, 500)
    assert judged.verdict is Outcome.PASS
    assert {r.module: r.status for r in judged.records}["grad_norm"] is RecordStatus.WARN
    assert set(document(found, judged, limits)["curve"]["values"]) == {"loss", "grad_norm"}


def test_csv_and_a_named_column(tmp_path: Path, base: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [json.loads(line) for line in base.read_text().splitlines()]
    path.write_text("iteration,lm loss\n" + "".join(f"{r['step']},{r['loss']}\n" for r in rows))
    assert run(base, path)[1].verdict is Outcome.PASS
    with pytest.raises(JoyError, match="Did you mean 'lm loss'"):
        run(path, path, column="lm los")


def test_tensorboard_files_are_read(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else it loads tensorflow, and its LLVM ends this process when a later test loads triton's.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", types.ModuleType("notf"))
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter(str(tmp_path / "tb"))
    for line in base.read_text().splitlines():
        row = json.loads(line)
        writer.add_scalar("train/loss", row["loss"], row["step"])
    writer.close()
    assert run(base, tmp_path / "tb")[1].verdict is Outcome.PASS


def test_a_resumed_runs_later_line_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": 1, "loss": 9}\n{"step": 1, "loss": 2}\n')
    assert read_curves(path).columns["loss"] == {1.0: 2.0}


@pytest.mark.parametrize(
    ("text", "what"),
    [("", "no curve"), ("{", "not a JSON line"), ('{"step": 1, "accuracy": 3}', "no loss")],
)
def test_a_bad_file_is_one_clear_error(tmp_path: Path, base: Path, text: str, what: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(JoyError, match=what):
        run(base, path)
    with pytest.raises(JoyError, match="no such file"):
        run(base, tmp_path / "absent")


@pytest.mark.parametrize(
    ("size", "values", "outcome"),
    [
        (0.01, (0.04, 0.05, 0.03), Outcome.INCONCLUSIVE),  # one digit, of which each is 25 %
        (0.0001, (0.0401, 0.0501, 0.0299), Outcome.PASS),
        (0.0001, (0.0441, 0.0551, 0.0331), Outcome.FAIL),
    ],
)
def test_what_was_printed_in_few_digits_is_not_held_to_more(
    tmp_path: Path, size: float, values: tuple[float, ...], outcome: Outcome
) -> None:
    paths = []
    for name, losses in (("a.jsonl", (0.04, 0.05, 0.03)), ("b.jsonl", values)):
        rows = [
            {"step": step, "loss": loss, "loss_resolution": size}
            for step, loss in enumerate(losses)
        ]
        paths.append(tmp_path / name)
        paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, judged = run(*paths)
    judged = verdict([found], Tolerance.of(None), 3, 3)
    assert judged.verdict is outcome, found.reason
