"""A device that draws other numbers from an equal state of its generator is told by that; another
seed is another thing, and rounding is neither."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from joymigrate.verify.bundle import open_bundle
from joymigrate.verify.model import Outcome
from joymigrate.verify.rest_stage import OTHER_DRAWS, OTHER_SEED
from tests.verify.harness import record, replay

PROGRAM = """
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
torch.manual_seed(0); torch.set_num_threads(1)
class Device(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        return made.flip(0) if OTHER and func is torch.ops.aten.randn.default else made
OTHER = False
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.ones(6, 4)
# here
with Device():
    for step in range(2):
        x = data + torch.randn(6, 4)
        loss = net(x).square().mean()
        optimiser.zero_grad(); loss.backward(); optimiser.step()
"""


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [("OTHER = False", "OTHER = True", OTHER_DRAWS), ("# here", "torch.randn(1)", OTHER_SEED)],
)
def test_what_is_drawn_from_an_equal_state_is_told_from_another_state(
    old: str, new: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "p.py").write_text(PROGRAM)
    (tmp_path / "t.py").write_text(PROGRAM.replace(old, new))
    record(tmp_path / "p.py", tmp_path / "b.jmb")
    found = replay(tmp_path / "b.jmb", tmp_path / "t.py", tmp_path / "t.jmb")
    first = found.first_divergence
    assert found.verdict is Outcome.FAIL
    assert first is not None
    assert (first.stage, first.op, str(first.evidence)) == ("S4R", "input given", reason)


ROUNDS = PROGRAM.replace(
    "return made.flip(0) if OTHER and func is torch.ops.aten.randn.default else made",
    "return made * (1 + OTHER * 2.0**-22) if func in ROUNDED else made",
)
CHOOSES = ROUNDS.replace(
    "loss = net(x).square().mean()",
    """action = torch.distributions.Normal(net(x), 1.0).sample()
        log = torch.distributions.Normal(net(x), 1.0).log_prob(action)
        loss = -(log * (1 - action.square())).mean()""",
).replace("nn.Tanh()", "nn.Tanh(), nn.Dropout(0.25)")


@pytest.mark.parametrize(
    ("program", "rounded"),
    [(ROUNDS, "torch.ops.aten.randn.default"), (CHOOSES, "torch.ops.aten.addmm.default")],
    ids=["in the last digit", "by a model's result"],
)
def test_numbers_that_rounding_moves_are_drawn_alike(
    program: str, rounded: str, tmp_path: Path
) -> None:
    program = program.replace("# here", f"ROUNDED = ({rounded},)")
    (tmp_path / "p.py").write_text(program)
    (tmp_path / "t.py").write_text(program.replace("OTHER = False", "OTHER = True"))
    record(tmp_path / "p.py", tmp_path / "b.jmb", runs=2)
    found = replay(tmp_path / "b.jmb", tmp_path / "t.py", tmp_path / "t.jmb")
    given = [f for e in rest_of(tmp_path / "t.jmb") for f in e.get("given", ())]
    assert any(f.get("error") and f.get("same_state") for f in given)  # there is what to forgive
    assert found.verdict is Outcome.PASS, (found.reason, found.first_divergence)
    assert not any("other random numbers" in str(item["reason"]) for item in found.uncovered)


def rest_of(bundle: Path) -> list[dict[str, Any]]:
    """The events of a target's first process."""
    events: list[dict[str, Any]] = open_bundle(bundle).ranks[0].json("tape.json")["events"]
    return events
