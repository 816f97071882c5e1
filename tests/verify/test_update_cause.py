"""Causes of wrong updates are differences in what the optimisers' code calls; others are tried."""

from __future__ import annotations

from typing import Any

import numpy as np
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


def test_gradients_that_are_clipped_lower_are_scaled_and_others_have_no_cause() -> None:
    draw = np.random.Generator(np.random.PCG64(0))
    golden = {name: draw.standard_normal(64) for name in ("a", "b")}

    def named(made: dict[str, Any]) -> str | None:
        found = rest_cause.cause_of_values(golden, made, {})
        return found[0] if found is not None else None

    assert named({name: 0.8 * value for name, value in golden.items()}) == "scale"
    assert named({"a": 0.8 * golden["a"], "b": 0.3 * golden["b"]}) == "scale"
    assert named({"a": golden["a"], "b": golden["b"] + draw.standard_normal(64)}) is None
    noise = {name: 0.05 * draw.standard_normal(64) for name in golden}  # of another formula
    assert named({name: golden[name] * (1.5 + noise[name]) for name in golden}) is None


def test_one_wrong_number_is_not_explained_by_a_factor() -> None:
    one = np.zeros(64)
    one[0] = 2.0
    assert rest_cause.cause_of_values({"loss": one}, {"loss": 1.1 * one}, {}) is None
    stale = rest_cause.cause_of_values({"loss": one}, {"loss": 0.3 * one}, {"loss": 0.3 * one})
    assert stale is not None
    assert stale[0] == "stale values"
    near = rest_cause.cause_of_values({"loss": one}, {"loss": 0.3 * one}, {"loss": 0.32 * one})
    assert near is None  # chance comes as near


def test_a_cause_is_tried_on_the_event_of_its_row_and_no_other() -> None:
    draw = np.random.Generator(np.random.PCG64(0))
    value = {name: draw.standard_normal(64) for name in ("a", "b")}

    def event(kind: str, number: int, key: str, factor: float, where: str = "") -> dict[str, Any]:
        items = {name: {"sketch": list(factor * one)} for name, one in value.items()}
        return {"kind": kind, "step": 0, "number": number, "index": 0, "where": where, key: items}

    class Recorded:
        """A process's record, as far as causes are asked for."""

        def __init__(self, key: str, *factors: float) -> None:
            moments = (("loss", ""), ("gradients", ""), ("state", "one:"), ("state", "two:"))
            self.events = [
                event(kind, 0, key, factor, where)
                for (kind, where), factor in zip(moments, factors, strict=True)
            ]

        def json(self, name: str) -> Any:
            return {"events": self.events}

    def row(phase: str, order: int, op: str, measured: float | None = 0.5) -> Difference:
        return Difference(module="a", call=0, phase=phase, op=op, metric="float64",
                          value=measured, limit=1e-5, status=RecordStatus.FAIL, stage="S4R",
                          step=0, order=order)  # fmt: skip

    golden: Any = Recorded("sinks", 1.0, 1.0, 1.0, 1.0)
    target: Any = Recorded("rows", 1.0, 0.8, 0.5, 1.0)
    words = [rest_cause.cause_of_rest(golden, target, row("state", order, "state"))
             for order in (2, 3, 4)]  # fmt: skip
    assert words[0] is not None
    assert "0.5" in str(words[0][1])
    assert words[1] is None or "0.5" not in str(words[1][1])
    assert words[2] is None
    # What a pass adds to is told of the loss; the clipped gradients beside it explain nothing.
    assert (
        rest_cause.cause_of_rest(golden, target, row("gradients", 0, "accumulated", None)) is None
    )


@pytest.mark.parametrize(("later", "named"), [(1.1, True), (1.4, False)])
def test_one_factor_of_few_numbers_has_to_hold_in_the_next_step(later: float, named: bool) -> None:
    """A loss is one number, and its gradient may be one: any two are a factor apart."""
    few = {"loss 0": np.array([2.0, *[0.0] * 63]), "gradient": np.array([3.0, *[0.0] * 63])}

    def rank(key: str, factors: tuple[float, float]) -> Any:
        events = [
            {"kind": "loss", "step": step, "number": 0, "index": 0, "where": "",
             key: {name: {"sketch": list(factor * one)} for name, one in few.items()}}
            for step, factor in enumerate(factors)
        ]  # fmt: skip
        return type("Recorded", (), {"json": lambda self, name: {"events": events}})()

    row = Difference(
        module="loss",
        call=0,
        phase="loss",
        op="loss",
        metric="float64",
        value=0.1,
        limit=1e-5,
        status=RecordStatus.FAIL,
        stage="S4R",
        step=0,
        order=0,
    )
    found = rest_cause.cause_of_rest(rank("sinks", (1.0, 1.0)), rank("rows", (1.1, later)), row)
    assert (found is not None) == named


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [(3.0, 3.0, True), (3.0, 2.5, False), (65536.0, 32768.0, True), (65536.0, 30000.0, False),
     (1.5, 0.75, False), (2.0, 1.0, False)],
)  # fmt: skip
def test_one_number_is_scaled_where_the_next_step_is_too(
    first: float, second: float, same: bool
) -> None:
    # A scaler of losses halves its factor where a step overflowed.
    golden = {"loss": np.array([0.7])}
    made = {"loss": np.array([0.7 * second], np.float32).astype(np.float64)}
    assert rest_cause.same_factor(first, golden, made) is same
