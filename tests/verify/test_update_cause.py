"""Causes of wrong updates are differences in what the optimisers' code calls; others are tried."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from joymigrate.verify import rest_cause
from joymigrate.verify.measure import relative_error
from joymigrate.verify.model import Difference, RecordStatus
from joymigrate.verify.optimisers import probe
from joymigrate.verify.update_cause import cause_of_update

ADAMW = {"lr": 1e-2, "weight_decay": 0.1}
SGD = {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.01}


def recorded(kind: type, settings: dict[str, Any]) -> dict[str, Any]:
    optimiser = kind([torch.nn.Parameter(torch.ones(3))], **settings)
    return {"class": kind.__name__, "probe": probe(optimiser)}


def wrong(kind: type, **changed: Any) -> type:
    """The optimiser with other settings than it says, in its step alone."""

    class Wrong(kind):  # type: ignore[misc]
        def step(self, closure: Any = None) -> None:
            kept = [dict(group) for group in self.param_groups]
            for group in self.param_groups:
                for key, value in changed.items():
                    group[key] = value(group[key]) if callable(value) else value
            super().step(closure)
            for group, before in zip(self.param_groups, kept, strict=True):
                group.update(before)

    Wrong.__name__ = kind.__name__
    return Wrong


class Late(torch.optim.SGD):
    """A step that uses the gradient of the step before."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        (parameter,) = self.param_groups[0]["params"]
        held = self.state[parameter].get("before", torch.zeros_like(parameter))
        self.state[parameter]["before"] = parameter.grad.clone()
        with torch.no_grad():
            parameter.add_(held, alpha=-self.param_groups[0]["lr"])


Late.__name__ = "SGD"


def own_adam(*, correct: bool, names: tuple[str, str], **more: Any) -> type:
    """A project's own Adam, with the settings that it invented."""

    class Own(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            settings = {"lr": 1e-2, names[0]: 0.9, names[1]: 0.999, "eps": 1e-8, **more}
            super().__init__(params, settings)

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                one, two = group[names[0]], group[names[1]]
                for p in group["params"]:
                    held = self.state[p]
                    held["t"] = held.get("t", 0) + 1
                    held["m"] = one * held.get("m", torch.zeros_like(p)) + (1 - one) * p.grad
                    held["v"] = two * held.get("v", torch.zeros_like(p)) + (1 - two) * p.grad**2
                    first = held["m"] / (1 - one ** held["t"] if correct else 1)
                    second = held["v"] / (1 - two ** held["t"])
                    p.sub_(group["lr"] * first / (second.sqrt() + group["eps"]))

    Own.__name__ = "Adam"
    return Own


def test_the_code_of_a_projects_own_class_is_held_against_the_baselines() -> None:
    names = ("decay", "squares")
    ours = recorded(own_adam(correct=True, names=names), {})
    found = cause_of_update(ours, recorded(own_adam(correct=False, names=names), {}))
    assert found is not None
    assert (found.name, found.by) == ("another argument", "diff")
    assert str(found.words) == "`div(1)`, 0.1 in the baseline"
    assert found.lines is not None
    assert found.lines[0].startswith("tests/verify/test_update_cause.py:")


@pytest.mark.parametrize(
    ("kind", "settings", "other", "words"),
    [
        (torch.optim.AdamW, ADAMW, {"eps": 1e-3}, "0.001"),
        (torch.optim.AdamW, ADAMW, {"betas": (0.9, 0.95)}, "0.95"),
        (torch.optim.AdamW, ADAMW, {"weight_decay": 0.0}, "left out"),
        (torch.optim.AdamW, ADAMW, {"decoupled_weight_decay": False}, "mul(0.999)"),
        (torch.optim.AdamW, ADAMW, {"amsgrad": True}, "zeros_like"),
        (torch.optim.AdamW, ADAMW, {"lr": lambda rate: 2 * rate}, "0.998"),
        (torch.optim.SGD, SGD, {"nesterov": True}, "added"),
        (torch.optim.SGD, SGD, {"momentum": 0.95}, "0.95"),
        (torch.optim.SGD, SGD, {"maximize": True}, "neg"),
    ],
)
def test_the_changed_part_of_an_update_is_named(
    kind: type, settings: dict[str, Any], other: dict[str, Any], words: str
) -> None:
    found = cause_of_update(recorded(kind, settings), recorded(wrong(kind, **other), settings))
    assert found is not None
    assert found.by == "diff"
    assert words in str(found.words)


def test_another_class_is_the_cause_where_its_code_differs_in_more_than_one_place() -> None:
    """A package's own AdamW makes other calls throughout: none of them is the one."""
    ours = {**recorded(torch.optim.Adam, {"lr": 1e-2}), "module": "torch.optim.adam"}
    made = recorded(own_adam(correct=False, names=("one", "two")), {})
    found = cause_of_update(ours, {**made, "module": "vendor.optim"})
    assert found is not None
    assert (found.name, found.by) == ("another class", "fact")
    assert "vendor.optim.Adam, torch.optim.adam.Adam in the baseline" in str(found.words)
    told = cause_of_update({**ours, "module": None}, {**made, "module": "vendor.optim"})
    assert told is None or told.by == "diff"  # by their classes they are one


def test_an_update_that_is_the_same_has_no_cause() -> None:
    assert cause_of_update(recorded(torch.optim.SGD, SGD), recorded(torch.optim.SGD, SGD)) is None
    late = cause_of_update(recorded(torch.optim.SGD, {"lr": 1e-2}), recorded(Late, {"lr": 1e-2}))
    assert late is not None


def test_a_mask_of_lowest_numbers_is_the_same_in_every_type() -> None:
    rows = torch.tensor([[0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    masks = {
        dtype: torch.zeros(2, 2, dtype=dtype).masked_fill(rows == 0, torch.finfo(dtype).min)
        for dtype in (torch.float64, torch.float32, torch.bfloat16)
    }
    golden = masks[torch.float64]
    assert relative_error(masks[torch.float32], golden) == 0.0
    assert relative_error(masks[torch.bfloat16], golden) == 0.0
    assert relative_error(torch.zeros(2, 2), golden) == float("inf")


def test_a_cause_is_told_from_the_event_of_its_row_and_no_other() -> None:
    def event(kind: str, factor: float, where: str = "") -> dict[str, Any]:
        trace = [["mul", {"0": "float[2]", "1": factor}, f"train.py:{kind}"]]
        return {"kind": kind, "step": 0, "number": 0, "where": where, "line": "train.py:9",
                "trace": trace, "lines": {"value 0": "train.py:7"}}  # fmt: skip

    class Recorded:
        """A process's record, as far as causes are asked for."""

        def __init__(self, *factors: float) -> None:
            moments = (("loss", ""), ("gradients", ""), ("state", "one:"), ("state", "two:"))
            self.events = [
                event(kind, factor, where)
                for (kind, where), factor in zip(moments, factors, strict=True)
            ]

        def json(self, name: str) -> Any:
            return {"events": self.events}

    def row(order: int, op: str) -> Difference:
        return Difference(module="a", call=0, phase="state", op=op, metric="float64", value=0.5,
                          limit=1e-5, status=RecordStatus.FAIL, stage="S4R", step=0,
                          order=order)  # fmt: skip

    golden: Any = Recorded(1.0, 1.0, 1.0, 1.0)
    target: Any = Recorded(1.0, 0.8, 0.5, 1.0)
    found = [rest_cause.cause_of_rest(golden, target, row(order, "state")) for order in (2, 3, 4)]
    assert (found[0].name, "0.5" in str(found[0].words)) == ("another argument", True)
    assert (found[1].name, found[1].lines) == (None, ("train.py:9", "train.py:9"))
    assert (found[2].name, found[2].lines) == (None, None)
    # A value goes by the line that reads it.
    read = rest_cause.cause_of_rest(golden, target, row(3, "value 0"))
    assert read.lines == ("train.py:7", "train.py:7")


class Rows(torch.optim.Optimizer):
    """Takes gradients that hold rows alone, as those of tables of embeddings."""

    halved = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for table in group["params"]:
                gradient = table.grad.coalesce()
                moved = gradient.values()
                moved = moved.mul(0.5) if self.halved else moved
                table[gradient.indices()[0]] -= group["lr"] * moved


class HalvedRows(Rows):
    halved = True


@pytest.mark.parametrize("kind", [Rows, HalvedRows])
def test_an_optimiser_that_refuses_dense_gradients_is_held_to_its_calls(kind: type) -> None:
    sides = []
    for one in (Rows, kind):
        found = probe(one([torch.nn.Parameter(torch.zeros(3, 2))], {"lr": 0.1}))
        assert all("updates" in result for result in found[0]["results"])
        sides.append({"class": "Rows", "probe": found})
    cause = cause_of_update(*sides)
    if kind is Rows:
        assert cause is None
    else:
        assert cause is not None
        assert (cause.name, str(cause.words)) == ("an operator added", "`mul(0.5)` added")
