"""Programs and their optimisers: closures, sparse gradients, tensors that are in no model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from joymigrate.verify.bundle import open_bundle
from joymigrate.verify.model import Outcome
from joymigrate.verify.optimiser_stage import apart
from joymigrate.verify.optimisers import probe
from tests.verify.harness import record, replay

PROGRAM = """
import torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
net = nn.Linear(6, 3)
optimiser = torch.optim.{optimiser}
for step in range(3):
    x, y = torch.randn(12, 6), torch.randint(0, 3, (12,))
    def closure():
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y) + 0.01 * net.weight.square().sum()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.2)
        return loss
    optimiser.step({keyword}closure)
"""
STEPS = {
    "LBFGS": ("LBFGS(net.parameters(), lr=0.5, max_iter=3)", ""),
    "SGD": ("SGD(net.parameters(), lr=0.1)", "closure="),
}


@pytest.mark.parametrize(
    ("optimiser", "old", "new", "phase"),
    [
        ("LBFGS", "", "", None),
        ("LBFGS", "0.01 *", "0.001 *", "loss"),
        ("SGD", "", "", None),
        ("SGD", "0.01 *", "0.001 *", "loss"),
        ("SGD", "), 0.2)", "), 0.15)", "gradients"),
    ],
)
def test_a_closure_is_the_programs_own_work(
    optimiser: str, old: str, new: str, phase: str | None, tmp_path: Path
) -> None:
    made, keyword = STEPS[optimiser]
    text = PROGRAM.format(optimiser=made, keyword=keyword)
    (tmp_path / "base.py").write_text(text)
    (tmp_path / "target.py").write_text(text.replace(old, new))
    record(tmp_path / "base.py", tmp_path / "base.jmb")
    there = tmp_path / "target.jmb"
    found = replay(tmp_path / "base.jmb", tmp_path / "target.py", there, noise=1.0)
    first = found.first_divergence
    assert found.verdict is (Outcome.FAIL if phase else Outcome.PASS), first
    assert (first.phase if first is not None else None) == phase
    assert sum(row.status.failed for row in found.records) == bool(phase)


SPARSE = """
import torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
table, net = nn.Embedding(20, 4, sparse=True), nn.Linear(4, 2)
rows = torch.optim.SparseAdam(table.parameters(), lr=1e-2)
dense = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    for part in range(2):
        net(table(torch.randint(0, 20, (6,)))).square().mean().backward()
    rows.step(); dense.step()
    rows.zero_grad(); dense.zero_grad()
"""


def test_sparse_gradients_may_be_there_as_a_backward_pass_begins(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text(SPARSE)
    record(tmp_path / "base.py", tmp_path / "base.jmb")
    found = replay(tmp_path / "base.jmb", tmp_path / "base.py", tmp_path / "t.jmb", noise=1.0)
    assert found.verdict is Outcome.PASS, found.first_divergence


LOOSE = """
import torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
net, balance = nn.Linear(4, 2), nn.Parameter(torch.zeros(2))
optimiser = torch.optim.Adamax([*net.parameters(), balance], lr=5e-3)
for step in range(3):
    parts = net(torch.randn(6, 4)).square().mean(0)
    loss = ((-balance).exp() * parts + balance).sum()
    optimiser.zero_grad(); loss.backward(); optimiser.step()
"""


@pytest.mark.parametrize("trained", ["*net.parameters(), balance", "*net.parameters()"])
def test_a_tensor_of_no_model_that_is_not_trained_is_a_failure(
    trained: str, tmp_path: Path
) -> None:
    (tmp_path / "base.py").write_text(LOOSE)
    (tmp_path / "target.py").write_text(LOOSE.replace("*net.parameters(), balance", trained))
    record(tmp_path / "base.py", tmp_path / "base.jmb")
    found = replay(tmp_path / "base.jmb", tmp_path / "target.py", tmp_path / "t.jmb", noise=1.0)
    failed = [(row.stage, row.phase) for row in found.records if row.status.failed]
    assert failed == ([] if "balance" in trained else [("S5", "optimiser")])


STUBBORN = """
import torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
class Counting(torch.optim.SGD):
    def step(self, closure=None):
        made = super().step(closure)
        self.state["calls"] = self.state.get("calls", 0) + 1  # beside those of parameters
        return made
net = nn.Linear(6, 3)
optimiser = Counting(net.parameters(), lr=0.1, momentum=0.9)
for step in range(4):
    def closure():
        optimiser.zero_grad()
        loss = net(torch.randn(12, 6)).square().mean()
        loss.backward()
        if step == 1:
            raise FloatingPointError("an overflow")
        return loss
    try:
        optimiser.step(closure)
    except FloatingPointError:
        continue
    optimiser.load_state_dict(optimiser.state_dict())
"""


class Sharp(torch.optim.Optimizer):
    """A step with the gradient of a neighbour, `rho` away."""

    def __init__(self, params: Any, turned: float = 1.0) -> None:
        super().__init__(params, {"lr": 0.1})
        self.turned = turned

    @torch.no_grad()
    def step(self, closure: Any) -> None:  # type: ignore[override]
        closure()
        (weight,) = self.param_groups[0]["params"]
        moved = 0.5 * self.turned * weight.grad
        weight.add_(moved)
        closure()
        weight.sub_(moved + 0.1 * weight.grad)


def test_an_optimiser_that_steps_with_a_closure_alone_is_tried_on_other_weights() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    found = [probe(kind) for kind in (Sharp([weight]), Sharp([weight], -1.0))]
    updates = [made[0]["results"][0]["updates"] for made in found]
    assert apart(*updates) > 0.01
    assert "updates" in probe(torch.optim.LBFGS([weight]))[0]["results"][0]
    kept = Sharp([weight])
    kept.held = {"first": weight}  # type: ignore[attr-defined]
    assert "holds its parameters in `held`" in probe(kept)[0]["results"][0]["reason"]
    assert weight.tolist() == [1.0, 1.0, 1.0]
    assert weight.grad is None


class Around(Sharp):
    """The same, which leaves the update to an optimiser inside of it (SAM, Lookahead)."""

    @torch.no_grad()
    def step(self, closure: Any) -> None:  # type: ignore[override]
        closure()
        self.base.step()


def test_a_probe_moves_no_weight_of_the_program_through_an_optimiser_inside() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    found = []
    for rate in (0.1, 0.2):
        kind = Around([weight])
        kind.base = torch.optim.SGD([weight], rate)
        found.append(probe(kind)[0]["results"][0]["updates"])
    assert apart(*found) > 0.5
    kind.base = [kind.base]
    assert "holds its parameters in `base`" in probe(kind)[0]["results"][0]["reason"]
    assert weight.tolist() == [1.0, 1.0, 1.0]
    assert weight.grad.tolist() == [1.0, 1.0, 1.0]


def test_a_closure_may_raise_and_a_state_may_hold_values_of_no_parameter(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text(STUBBORN)
    record(tmp_path / "base.py", tmp_path / "base.jmb")
    rank = open_bundle(tmp_path / "base.jmb").ranks[0]
    (updates,) = rank.json("log.json")["updates"].values()
    assert updates == 3  # the last of four, one of which raised


BY_HAND = """
import torch
torch.manual_seed(0); torch.set_num_threads(1)
net = torch.nn.Linear(4, 2)
unused = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    loss = net(torch.randn(8, 4)).square().mean()
    net.zero_grad(); loss.backward()
    for p in net.parameters():
        p.data -= 0.1 * p.grad
"""


def test_a_program_that_updates_by_hand_beside_an_optimiser_has_its_steps(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(BY_HAND)
    made = record(tmp_path / "p.py", tmp_path / "b.jmb", runs=2)
    assert made.ranks[0].steps == [0, 1, 2]
    (tmp_path / "t.py").write_text(BY_HAND.replace("0.1 * p.grad", "(0.1 + (step > 1)) * p.grad"))
    found = replay(tmp_path / "b.jmb", tmp_path / "t.py", tmp_path / "t.jmb").first_divergence
    assert found is not None
    assert (found.step, found.phase) == (2, "optimiser")


AVERAGED = """
import copy, torch
torch.manual_seed(0); torch.set_num_threads(1)
class Own(torch.optim.Optimizer):
    def __init__(self, params): super().__init__(params, {"lr": 0.1})
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"])
net = torch.nn.Linear(4, 4)
average = copy.deepcopy(net)
opt = Own(net.parameters())
for step in range(4):
    for micro in range(2):
        with torch.no_grad():
            for a, b in zip(average.parameters(), net.parameters()):
                a.mul_(0.9).add_(0.1 * b)
        x = torch.randn(8, 4)
        ((net(x) - average(x).detach()).square().mean() / 2).backward()
    opt.step(); opt.zero_grad()
"""


def test_an_average_that_is_moved_by_hand_ends_no_step(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(AVERAGED)
    record(tmp_path / "p.py", tmp_path / "b.jmb", runs=2)
    (tmp_path / "t.py").write_text(AVERAGED.replace('alpha=-group["lr"]', "alpha=-0.12"))
    found = replay(tmp_path / "b.jmb", tmp_path / "t.py", tmp_path / "t.jmb").first_divergence
    assert found is not None
    assert found.phase == "optimiser"


UNSEEDED = """
import os, time, torch
torch.manual_seed(0); torch.set_num_threads(1)
own = torch.Generator(); own.manual_seed(time.time_ns() % 2**31)
net = torch.nn.Linear(6, 2)
with torch.no_grad():
    net.weight.copy_(torch.randn(2, 6, generator=own))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    loss = net(torch.randn(64, 6)).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
"""


def test_weights_of_the_first_step_are_not_made_by_training(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(UNSEEDED)
    record(tmp_path / "p.py", tmp_path / "b.jmb", runs=2)
    found = replay(tmp_path / "b.jmb", tmp_path / "p.py", tmp_path / "t.jmb").first_divergence
    assert found is not None
    assert found.stage == "S1"
