"""An update is held against float64 arithmetic of the device's own weights, gradients and state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from joymigrate.verify.identity_map import IdentityMap
from joymigrate.verify.own_update import OFF, OwnUpdate, is_elementwise

RULES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr_decay=0.1),
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Rprop": torch.optim.Rprop,
    "ASGD": torch.optim.ASGD,
    "Adafactor": torch.optim.Adafactor,
}


def updated(make: Callable[[Any], Any], spoil: Callable[[Any], None] | None = None) -> Any:
    """What is found of the third step of a rule; `spoil` changes the weights after it."""
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(8, 12).t()), torch.nn.Parameter(torch.randn(300))]
    opt = make(weights)
    names: IdentityMap[str] = IdentityMap()
    for number, weight in enumerate(weights):
        names.put(weight, f"net:w.{number}")
    found: Any = None
    for step in range(3):
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        own = OwnUpdate()
        own.begin(opt, names, {})
        opt.step()
        if spoil is not None and step == 2:
            with torch.no_grad():
                spoil(weights[0])
        found = own.end(opt)
    return found


@pytest.mark.parametrize("rule", RULES)
def test_torchs_own_rules_are_what_they_say(rule: str) -> None:
    found = updated(RULES[rule])
    assert found["reason"] is None
    assert [row[0] for row in found["rows"]] == ["net:w.0", "net:w.1"]
    assert all(row[2] <= OFF * row[3] for row in found["rows"]), found["rows"]


@pytest.mark.parametrize("rule", ["Adam", "SGD", "Adafactor"])
def test_a_weight_that_moves_otherwise_is_found(rule: str) -> None:
    rows = updated(RULES[rule], lambda weight: weight.add_(1e-4))["rows"]
    assert [row[2] > OFF * row[3] for row in rows] == [True, False]


def test_a_rule_of_whole_tensors_is_told_from_one_of_elements() -> None:
    weight = [torch.nn.Parameter(torch.randn(4, 4))]
    elementwise, whole = torch.optim.Adam(weight), torch.optim.Adafactor(weight)
    assert is_elementwise(elementwise, elementwise.param_groups[0])
    assert not is_elementwise(whole, whole.param_groups[0])


def test_what_calls_a_closure_or_holds_another_is_not_judged() -> None:
    found = updated(lambda p: Lookahead(torch.optim.SGD(p, lr=0.1)))
    assert found["rows"] == []
    assert "another optimiser" in str(found["reason"])


class Lookahead(torch.optim.Optimizer):
    """Holds another optimiser."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__([p for g in inner.param_groups for p in g["params"]], {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()
