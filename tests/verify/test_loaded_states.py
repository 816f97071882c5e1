"""States that a program saves and loads again while it trains: which ones, and whether at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.verify.model import Outcome
from tests.verify.harness import record, replay

PROGRAM = """
import copy, torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimiser = torch.optim.AdamW(net.parameters(), lr=1e-2)
average = {n: p.detach().clone() for n, p in net.named_parameters()}
for step in range(9):
    x, y = torch.randn(12, 6), torch.randint(0, 3, (12,))
    loss = nn.functional.cross_entropy(net(x), y)
    optimiser.zero_grad(); loss.backward(); optimiser.step()
    if step % 3 == 2:  # validate with the average in place of the weights
        kept = {n: p.detach().clone() for n, p in net.named_parameters()}
        with torch.no_grad():
            for n, p in net.named_parameters():
                average[n].lerp_(p, 0.5)
                p.copy_(average[n])
            net(x)
            for n, p in net.named_parameters():
                p.copy_(kept[n])
    if step == 2:
        saved = copy.deepcopy((net.state_dict(), optimiser.state_dict()))
    if step == 6:
        net.load_state_dict(saved[0], strict=False)
        optimiser.load_state_dict(saved[1])
"""
HALF = "{n: t.half().float() for n, t in saved[0].items()}"


@pytest.mark.parametrize(
    ("old", "new", "module"),
    [
        ("step == 6", "step == 6", None),
        ("saved[0], strict", '{"net." + n: t for n, t in saved[0].items()}, strict', "net"),
        ("saved[0], strict", f"{HALF}, strict", "net"),
        ("        optimiser.load_state_dict(saved[1])\n", "", "AdamW 0"),
    ],
)
def test_another_state_that_is_loaded_is_one_failure(
    old: str, new: str, module: str | None, tmp_path: Path
) -> None:
    (tmp_path / "base.py").write_text(PROGRAM)
    (tmp_path / "target.py").write_text(PROGRAM.replace(old, new))
    record(tmp_path / "base.py", tmp_path / "base.jmb")
    there = tmp_path / "target.jmb"
    found = replay(tmp_path / "base.jmb", tmp_path / "target.py", there, noise=1.0)
    first = found.first_divergence
    if module is None:
        assert found.verdict is Outcome.PASS, first
        return
    assert first is not None
    assert (first.stage, first.module, first.op, first.step) == ("S1", module, "loaded state", 6)
    assert sum(row.status.failed for row in found.records) == 1
