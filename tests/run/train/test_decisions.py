"""The pure parts of the loop: guard, loss scale, learning rate, FLOPs."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from joymigrate.chips import all_chips
from joymigrate.run.train import SpikeGuard, flops, optimise
from joymigrate.run.train.guard import Action
from joymigrate.run.train.job import Schedule
from joymigrate.run.train.scaling import LossScale


def fed(guard: SpikeGuard, count: int = 30) -> SpikeGuard:
    for step in range(count):
        assert guard.on(step, 2.0 + 0.05 * math.sin(step)) is Action.GO_ON
    return guard


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 4.0])
def test_a_loss_gone_wrong_rolls_back(loss: float) -> None:
    guard = fed(SpikeGuard())
    assert guard.on(31, loss) is Action.ROLL_BACK
    assert "step 31" in guard.reason


def test_ordinary_movement_goes_on() -> None:
    guard = fed(SpikeGuard())
    assert guard.on(31, 2.15) is Action.GO_ON


def test_a_constant_loss_does_not_make_a_ripple_a_spike() -> None:
    guard = SpikeGuard()
    for step in range(30):
        guard.on(step, 1.0)
    assert guard.on(31, 1.1) is Action.GO_ON


def test_the_first_losses_may_be_anything_but_not_no_number() -> None:
    guard = SpikeGuard()
    assert guard.on(1, 10.0) is Action.GO_ON
    assert guard.on(2, 1000.0) is Action.GO_ON
    assert guard.on(3, float("nan")) is Action.ROLL_BACK


def test_rollbacks_are_bounded() -> None:
    guard = SpikeGuard(rollbacks=2)
    found = [guard.on(step, float("nan")) for step in range(3)]
    assert found == [Action.ROLL_BACK, Action.ROLL_BACK, Action.FAIL]


def test_spikes_can_be_switched_off() -> None:
    assert fed(SpikeGuard(spike=0)).on(31, 1e6) is Action.GO_ON


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
