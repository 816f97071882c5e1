"""The pure parts of the loop: guard, loss scale, learning rate, FLOPs."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import pytest

from joymigrate.chips import all_chips
from joymigrate.run.train import SpikeGuard, flops, optimise
from joymigrate.run.train.guard import GuardAction
from joymigrate.run.train.job import Schedule
from joymigrate.run.train.scaling import LossScale


def fed(guard: SpikeGuard, count: int = 30) -> SpikeGuard:
    for step in range(count):
        assert guard.on(step, 2.0 + 0.05 * math.sin(step)) is GuardAction.GO_ON
    return guard


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_rolls_back(loss: float) -> None:
    guard = fed(SpikeGuard())
    assert guard.on(31, loss) is GuardAction.ROLL_BACK
    assert "step 31" in guard.reason


def test_a_gradient_that_is_no_number_rolls_back() -> None:
    guard = fed(SpikeGuard())
    assert guard.on(31, 2.0, float("nan")) is GuardAction.ROLL_BACK
    assert guard.reason == "the gradient norm of step 31 is nan"


@pytest.mark.parametrize(
    ("on_spike", "expected"), [("warn", GuardAction.WARN), ("roll_back", GuardAction.ROLL_BACK)]
)
def test_a_loss_that_stays_up_is_a_spike(on_spike: str, expected: GuardAction) -> None:
    guard = fed(SpikeGuard(on_spike=on_spike, patience=3))
    found = [guard.on(step, 4.0) for step in range(31, 34)]
    assert found == [GuardAction.GO_ON, GuardAction.GO_ON, expected]
    assert "for 3 looks in a row" in guard.reason


def test_a_single_rare_batch_is_none() -> None:
    guard = fed(SpikeGuard(patience=2))
    for step in range(31, 60):
        loss = 9.0 if step % 3 == 0 else 2.0
        assert guard.on(step, loss) is GuardAction.GO_ON


def test_a_high_loss_with_an_ordinary_gradient_is_none() -> None:
    guard = SpikeGuard(patience=1, on_spike="roll_back")
    for step in range(30):
        guard.on(step, 2.0 + 0.05 * math.sin(step), 1.0)
    assert guard.on(31, 9.0, 1.0) is GuardAction.GO_ON
    assert guard.on(32, 9.0, 9.0) is GuardAction.ROLL_BACK


def healthy_run(seed: int) -> list[tuple[float, float]]:
    """Losses and norms of a run that learns: rare rows, heavy tails, or almost nothing left."""
    draw = random.Random(seed)
    rare, tail, last = (
        draw.choice([0.0, 0.012, 0.05]),
        draw.choice([2.0, 4.0]),
        10 ** -draw.random(),
    )
    found = []
    for step in range(400):
        loss = last + 3 / (1 + step / 20)
        loss *= 1 + 0.03 * draw.paretovariate(tail) + 0.05 * draw.gauss(0, 1)
        lift = draw.uniform(3, 30) if draw.random() < rare else 1.0
        found.append((abs(loss) * lift, lift * draw.paretovariate(tail)))
    return found


@pytest.mark.parametrize("on_spike", ["warn", "roll_back"])
def test_healthy_runs_go_on(on_spike: str) -> None:
    ended = []
    for seed in range(1000):
        guard = SpikeGuard(on_spike=on_spike)
        if any(
            guard.on(n, *one) is not GuardAction.GO_ON for n, one in enumerate(healthy_run(seed))
        ):
            ended.append(seed)
    assert ended == []


def test_ordinary_movement_goes_on() -> None:
    guard = fed(SpikeGuard(patience=1))
    assert guard.on(31, 2.15) is GuardAction.GO_ON


def test_a_constant_loss_does_not_make_a_ripple_a_spike() -> None:
    guard = SpikeGuard(patience=1)
    for step in range(30):
        guard.on(step, 1.0)
    assert guard.on(31, 1.1) is GuardAction.GO_ON


def test_the_first_losses_may_be_anything_but_not_no_number() -> None:
    guard = SpikeGuard(patience=1)
    assert guard.on(1, 10.0) is GuardAction.GO_ON
    assert guard.on(2, 1000.0) is GuardAction.GO_ON
    assert guard.on(3, float("nan")) is GuardAction.ROLL_BACK


def test_rollbacks_are_bounded() -> None:
    guard = SpikeGuard(rollbacks=2)
    found = [guard.on(step, float("nan")) for step in range(3)]
    assert found == [GuardAction.ROLL_BACK, GuardAction.ROLL_BACK, GuardAction.FAIL]


def test_spikes_can_be_switched_off() -> None:
    guard = fed(SpikeGuard(spike=0, patience=1))
    assert guard.on(31, 1e6) is GuardAction.GO_ON


def test_an_overflow_halves_the_scale_and_good_steps_double_it() -> None:
    scale = LossScale(on=True, value=1024.0, patience=3)
    assert not scale.accept(False)
    assert scale.value == 512
    assert all(scale.accept(True) for _ in range(3))
    assert scale.value == 1024
    assert LossScale().factor == 1.0


def test_the_rate_warms_up_and_falls_to_its_floor() -> None:
    schedule = Schedule("linear", warmup=4, floor=0.1)
    rates = [optimise.factor(schedule, step, 14) for step in range(15)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[14] == pytest.approx(0.1)
    assert optimise.factor(Schedule("cosine"), 5, 10) == pytest.approx(0.5)
    assert optimise.factor(Schedule("constant"), 9, 10) == 1.0


def test_work_is_six_times_matrices_and_attention() -> None:
    from joymigrate.run.train.models import ModelSource

    settings = {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "vocab_size": 100,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    model = ModelSource(None, settings).transformers("AutoModelForCausalLM")
    per_layer = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 64
    expected = 6 * (2 * per_layer + 100 * 32) + 6 * 2 * 4 * 8 * 128
    assert flops.work_of(model, 128).per_token == expected


def test_peaks_come_from_the_chips_data_and_unknown_cards_have_none() -> None:
    chips = all_chips().values()
    assert flops.known_peak("NVIDIA H100 80GB HBM3", "bfloat16", chips) == 989e12
    assert flops.known_peak("Some New Card", "bfloat16", chips) is None
    work = flops.StepFlops(1e9, 1)
    assert work.mfu(1000.0, None) is None
    assert work.mfu(1000.0, 4e12) == 0.25
    assert flops.peak_of(SimpleNamespace(is_cpu=True), "float32")[0] is None  # type: ignore[arg-type]
