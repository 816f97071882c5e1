"""A fill refuses what torch refuses, with the same class of error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import joymigrate.run.rehearse.fill as fill
from joymigrate.run.rehearse.fill.register import kernel

BY_OVERLOAD = {name: one for one in fill.fills().values() for name in one.overloads}
ints, floats = torch.arange(3), torch.rand(3)
REFUSED: dict[str, Callable[[], Any]] = {
    "det of a rectangle": lambda: torch.linalg.det(torch.rand(3, 4)),
    "huber below zero": lambda: torch.nn.functional.huber_loss(floats, floats, delta=-1),
    "zero point outside": lambda: torch.fake_quantize_per_tensor_affine(floats, 0.1, 300, 0, 255),
    "in place on integers": lambda: torch.arange(3).lgamma_(),
    "floats into integers": lambda: torch.hypot(floats, floats, out=torch.zeros(3).int()),
    "integers": lambda: torch.hypot(ints, ints),
    "probability of 1.5": lambda: torch.empty(3).geometric_(1.5),
    "negative scale": lambda: torch.empty(3).cauchy_(0, -1),
    "shapes": lambda: torch.fmax(floats, torch.rand(4)),
    "index outside": lambda: torch.rand(3).index_reduce_(0, torch.tensor([5]), floats[:1], "prod"),
    "mixed dtypes": lambda: torch.heaviside(floats, ints),
}


class Filled(TorchDispatchMode):
    """Every fill in the place of torch's kernel."""

    used = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = func._schema
        name = f"{schema.name}.{schema.overload_name}".rstrip(".")
        if name not in BY_OVERLOAD:
            return func(*args, **(kwargs or {}))
        self.used = True
        return kernel(BY_OVERLOAD[name], func)(*args, **(kwargs or {}))


def outcome(call: Callable[[], Any]) -> type[BaseException] | None:
    try:
        call()
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize("name", REFUSED)
def test_a_fill_refuses_what_torch_refuses(name: str) -> None:
    expected = outcome(REFUSED[name])
    assert expected is not None
    with Filled() as filled:
        found = outcome(REFUSED[name])
    assert filled.used
    assert found is expected


def test_asking_does_not_change_numbers_inputs_or_the_random_stream() -> None:
    x = torch.tensor([0.5, 1.5])
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    with Filled():
        assert torch.equal(torch.lgamma(x), torch.lgamma(x))
        x.clone().lgamma_()
    assert x.tolist() == [0.5, 1.5]
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.dear
@pytest.mark.filterwarnings("ignore")  # torch's own, of the samples
def test_every_error_input_of_torch_raises_the_same_class(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db

    # torch looks through the whole stack for a TestCase, twice for each input.
    monkeypatch.setattr(common_utils, "extract_test_fn", lambda: None)
    asked, wrong = 0, []
    for op in (one for one in op_db if one.error_inputs_func is not None):
        for error in op.error_inputs("cpu"):
            sample = error.sample_input

            def call(op: Any = op, sample: Any = sample) -> Any:
                copied = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, sample.input)
                return op(copied, *sample.args, **sample.kwargs)

            with Filled() as filled:
                found = outcome(call)
            if filled.used:
                asked += 1
                if found is not outcome(call):
                    wrong.append(op.name)
    assert asked > 5
    assert not wrong
