"""Weights that are one tensor on one side and two on the other: training moves them apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joymigrate.verify.bundle import open_bundle
from joymigrate.verify.compare import compare
from joymigrate.verify.model import Outcome, RecordStatus
from joymigrate.verify.tolerance import Tolerance
from tests.verify.harness import record, replay

PROGRAM = """
import torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(20, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = {weight}
    def forward(self, ids): return self.head(torch.tanh(self.mix(self.embed(ids))))
net = Net()
optimiser = torch.optim.AdamW(net.parameters(), lr=1e-2)
for step in range(3):
    ids = torch.randint(0, 20, (4, 6))
    loss = nn.functional.cross_entropy(net(ids).flatten(0, 1), ids.roll(1, 1).flatten())
    optimiser.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5); optimiser.step()
"""
ONE, TWO = "self.embed.weight", "nn.Parameter(self.embed.weight.detach().clone())"
MEMORY = "nn.Parameter(self.embed.weight.detach())"


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (ONE, TWO, "one tensor in the baseline, and not here"),
        (TWO, ONE, "one tensor here, and not in the baseline"),
        (ONE, MEMORY, "one tensor in the baseline, and not here"),
        (MEMORY, TWO, "two tensors in one memory in the baseline, and not here"),
    ],
)
def test_a_tie_of_weights_that_one_side_lacks_is_named(
    ours: str, theirs: str, words: str, tmp_path: Path
) -> None:
    for name, weight in (("base", ours), ("target", theirs)):
        (tmp_path / f"{name}.py").write_text(PROGRAM.format(weight=weight))
    record(tmp_path / "base.py", tmp_path / "base.jmb")
    found = replay(tmp_path / "base.jmb", tmp_path / "target.py", tmp_path / "target.jmb")
    first = found.first_divergence
    assert found.verdict is Outcome.FAIL
    assert first is not None
    assert (first.stage, first.op, first.cause) == ("S1", "shared weight", "shared weights")
    assert words in str(first.evidence)
    assert "head.weight" in str(first.evidence)
    assert sum(row.status.failed for row in found.records) == 1


def test_weights_that_nothing_trains_may_be_tied_on_one_side(tmp_path: Path) -> None:
    asks = "    with torch.no_grad(): print(net(ids).sum())\n"
    program = PROGRAM[: PROGRAM.index("    loss =")].replace("optimiser =", "unused =") + asks
    for name, weight in (("base", ONE), ("memory", MEMORY), ("target", TWO)):
        (tmp_path / f"{name}.py").write_text(program.format(weight=weight))
    for name in ("base", "memory"):
        record(tmp_path / f"{name}.py", tmp_path / f"{name}.jmb")
        found = replay(tmp_path / f"{name}.jmb", tmp_path / "target.py", tmp_path / f"of {name}")
        assert found.verdict is Outcome.PASS, found.first_divergence
        assert any("head.weight" in str(item["reason"]) for item in found.uncovered)


def test_one_memory_that_a_move_to_a_device_copies_apart_is_a_note(tmp_path: Path) -> None:
    for name, weight in (("base", MEMORY), ("target", TWO)):
        (tmp_path / f"{name}.py").write_text(PROGRAM.format(weight=weight))
    record(tmp_path / "base.py", tmp_path / "base.jmb")
    replay(tmp_path / "base.jmb", tmp_path / "target.py", tmp_path / "target.jmb")
    base, target = (open_bundle(tmp_path / f"{name}.jmb") for name in ("base", "target"))
    program = target.ranks[0].program
    program["environment"]["devices"] = {"npu": "a device"}
    (target.ranks[0].folder / "program.json").write_text(json.dumps(program))
    found = compare(base, target, Tolerance.of(None))
    assert found.verdict is Outcome.PASS, (found.reason, found.first_divergence)
    assert any("do not compute the same from here" in str(i["reason"]) for i in found.uncovered)
    (tie,) = [row for row in found.records if row.op == "shared weight"]
    assert tie.status is RecordStatus.WARN
    assert "`.to` a device copies each" in str(tie.reason)
    assert tie.reason in [item["reason"] for item in found.uncovered]
