"""Choosing an implementation: request, then measurement, then priority, then the reference."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from joymigrate.errors import JoyError
from joymigrate.run import kernels
from joymigrate.run.kernels import select, tuning_results
from joymigrate.run.kernels.operator import Call, Implementation

SHAPE = (64, 128)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOYMIGRATE_CACHE", str(tmp_path))
    monkeypatch.delenv("JOYMIGRATE_KERNELS", raising=False)
    kernels.forget_choices()


def call(shape: tuple[int, ...] = SHAPE, dtype: str = "float32", **more: object) -> Call:
    return dataclasses.replace(Call("cpu", "cpu", dtype, shape), **more)  # type: ignore[arg-type]


def remember(op: str, implementation: str, for_call: Call) -> None:
    card = tuning_results.card_name("cpu")
    assert card is not None
    entry = tuning_results.TunedEntry(implementation, 1.0, 2.0, for_call.shape)
    tuning_results.store(
        tuning_results.path_of("cpu", card), card, {tuning_results.key(op, for_call): entry}
    )
    kernels.forget_choices()


def test_without_anything_priority_decides_and_says_so() -> None:
    choice = kernels.op("rms_norm").choose(chip="cpu", dtype=torch.float32, shape=SHAPE)
    assert choice.implementation == "torch"
    assert "priority" in choice.reason
    assert dict(choice.left)["vendor"] == "runs on ascend"


def test_a_choice_computes_when_called() -> None:
    x, weight = torch.randn(3, 8), torch.rand(8)
    choice = kernels.op("rms_norm").choose(shape=(3, 8))
    torch.testing.assert_close(choice(x, weight), kernels.op("rms_norm").reference(x, weight))


def test_an_explicit_request_wins() -> None:
    choice = kernels.op("rms_norm").choose(shape=SHAPE, request="reference")
    assert (choice.implementation, choice.reason) == ("reference", "explicit request")


def test_an_explicit_request_that_cannot_run_is_an_error() -> None:
    with pytest.raises(JoyError, match="'vendor' was asked for and cannot run: runs on ascend"):
        kernels.op("rms_norm").choose(shape=SHAPE, request="vendor")


def test_a_misspelt_request_suggests_the_near_name() -> None:
    with pytest.raises(JoyError, match="Did you mean 'torch'"):
        kernels.op("rms_norm").choose(shape=SHAPE, request="torhc")


def test_a_misspelt_operator_suggests_the_near_name() -> None:
    with pytest.raises(JoyError, match="Did you mean 'rms_norm'"):
        kernels.op("rmsnorm")


def test_a_measurement_beats_priority_in_its_bucket_only() -> None:
    remember("rms_norm", "reference", call((60, 100)))  # the bucket of 64 x 128
    kernel = kernels.op("rms_norm")
    choice = kernel.choose_for(call())
    assert choice.implementation == "reference"
    assert choice.reason.startswith("tuned here")
    assert kernel.choose_for(call((65, 128))).implementation == "torch"
    assert kernel.choose_for(call(dtype="bfloat16")).implementation == "torch"
    assert kernel.choose_for(call(grad=True)).implementation == "torch"


def test_a_measurement_of_something_that_cannot_run_is_not_followed() -> None:
    remember("rms_norm", "liger", call())
    assert kernels.op("rms_norm").choose_for(call()).implementation == "torch"


def test_a_request_beats_a_measurement() -> None:
    remember("rms_norm", "reference", call())
    assert kernels.op("rms_norm").choose_for(call(), "torch").implementation == "torch"


def test_requests_hold_in_a_block() -> None:
    kernel = kernels.op("rms_norm")
    with kernels.requested(rms_norm="reference"):
        assert kernel.choose(shape=SHAPE).implementation == "reference"
    assert kernel.choose(shape=SHAPE).implementation == "torch"


def test_requests_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOYMIGRATE_KERNELS", "rms_norm=reference, swiglu=recomputed")
    assert kernels.op("rms_norm").choose(shape=SHAPE).implementation == "reference"
    assert kernels.op("swiglu").choose(shape=SHAPE).implementation == "recomputed"


@pytest.mark.parametrize("text", ["rms_norm", "=torch", "rms_norm="])
def test_a_malformed_environment_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("JOYMIGRATE_KERNELS", text)
    with pytest.raises(JoyError, match="operator=implementation"):
        kernels.op("rms_norm").choose(shape=SHAPE)


def test_an_interpreted_kernel_is_never_chosen_by_itself() -> None:
    choice = kernels.op("add_rms_norm").choose(shape=SHAPE)
    assert choice.implementation == "torch"
    assert dict(choice.left)["triton"] == "interpreted on a CPU, for checks only"


def test_choosing_on_a_cpu_does_not_import_triton() -> None:
    program = (
        "import sys; from joymigrate.run import kernels; "
        "[kernels.op(name).choose(shape=(64, 64, 64), variant='half')"
        " for name in ('rotary', 'add_rms_norm', 'cross_entropy', 'matmul_add_fp32')]; "
        "assert 'joymigrate.run.kernels.own.rotary' not in sys.modules; "
        "assert 'liger_kernel' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_loses_is_not_chosen_but_may_be_asked_for() -> None:
    few = call((8, 64, 64), "bfloat16", variant="half")
    kernel = kernels.op("rotary")
    choice = kernel.choose_for(few)
    assert choice.implementation == "reference"
    assert "slower" in dict(choice.left)["torch"]
    assert kernel.choose_for(few, "torch").implementation == "torch"


def test_without_a_gradient_a_forward_only_implementation_will_do() -> None:
    kernel = kernels.op("swiglu")
    x = torch.randn(4, 16, requires_grad=True)
    assert kernel.choose_for(kernel.call_of(x, x)).implementation == "reference"
    with torch.no_grad():
        assert kernel.choose_for(kernel.call_of(x, x)).implementation == "torch"


def test_a_missing_package_is_a_reason() -> None:
    item = Implementation("x", lambda: None, packages=("no_such_package_at_all",))
    assert select.why_not(item, call()) == "no_such_package_at_all is not installed"


def test_bfloat16_in_the_interpreter_is_refused() -> None:
    item = Implementation("x", lambda: None, devices=("cuda",), interpreted=True)
    reason = select.why_not(item, call(dtype="bfloat16"))
    assert reason is not None
    assert "bfloat16 wrongly" in reason


def test_remembered_choices_do_not_grow_without_end() -> None:
    kernel = kernels.op("rms_norm")
    for rows in range(5000):
        kernel.choose_for(call((rows, 4)))
    assert len(kernel._chosen) <= 4096


def test_every_operator_has_a_reference_cases_and_a_formula() -> None:
    found = kernels.operators()
    assert {"attention", "rotary", "rms_norm", "add_rms_norm", "swiglu", "cross_entropy"} <= {
        *found
    }
    assert {"fused_linear_cross_entropy", "matmul_add_fp32", "adamw", "sub_mul_concat"} <= {*found}
    assert {"quant_matmul", "int4_matmul", "jagged_to_padded", "unique_lookup"} <= {*found}
    for kernel in found.values():
        assert kernel.names()[0] == "reference"
        assert kernel.operator.formula
        assert kernel.operator.signature.startswith(f"{kernel.name}(")


def test_sizes_that_vary_are_not_chosen_for_anew() -> None:
    """Where no implementation hangs on exact sizes: batches of click models never repeat theirs."""
    bag = kernels.op("embedding_bag")
    bag.forget()
    for count in range(65, 129):
        ids = torch.zeros(count, dtype=torch.long)
        bag(torch.ones(5, 4), ids, torch.tensor([0, count]))
    assert len(bag._chosen) == 1
