"""A port with one subtle error: what differs between training and evaluation, what isn't there."""

# ruff: noqa: E501  lines of programs, as tables

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.verify.model import Outcome
from tests.verify.harness import record, replay

PROGRAM = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0); torch.set_num_threads(1)
class Block(nn.Module):
    def __init__(self, bias=True):
        super().__init__(); self.norm = nn.LayerNorm(16)
        self.up, self.down, self.drop = nn.Linear(16, 48, bias=bias), nn.Linear(48, 16), nn.Dropout(0.1)
    def forward(self, x): return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.first = Block(); self.second = Block(); self.head = nn.Linear(16, 4)
    def forward(self, x): return self.head(self.second(self.first(x)))
net = Net(); optimiser = torch.optim.AdamW(net.parameters(), lr=1e-2)
g = torch.Generator().manual_seed(1)
held = torch.randn(12, 16, generator=g)
for step in range(3):
    x, y = torch.randn(8, 16, generator=g), torch.randint(0, 4, (8,), generator=g)
    net.train()
    loss = F.cross_entropy(net(x), y)
    optimiser.zero_grad(); loss.backward()
    # after the backward pass
    optimiser.step()
    net.eval()
    with torch.no_grad(): net(held)
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ports")
    (folder / "base.py").write_text(PROGRAM)
    record(folder / "base.py", folder / "base.jmb")
    return folder


@pytest.mark.parametrize(
    ("old", "new", "module", "cause", "evidence"),
    [
        ("    net.eval()\n", "", "net", "training mode", "in training mode here, in evaluation mode in the baseline"),
        ("    net.train()\n", "    net.train(step == 0)\n", "net", "training mode", "in evaluation mode here, in training mode in the baseline"),
        ("    net.eval()\n", "    net.eval(); net.second.train()\n", "second", "training mode", "in training mode here, in evaluation mode in the baseline"),
        ("self.second = Block()", "self.second = Block(bias=False)", "second.up", None, "the target has no such tensor"),
        ("self.up(self.norm(x))", "F.linear(self.norm(x), self.up.weight)", "first", "an operator added", "`linear()` added"),
        ("    # after the backward pass", "    for p in net.parameters(): p.grad.clamp_(-0.01, 0.01)", "first.norm", "an operator added", "`clamp(-0.01, 0.01)` added"),
    ],
)  # fmt: skip
def test_it_is_one_failure_with_its_cause(
    old: str, new: str, module: str, cause: str | None, evidence: str, base: Path, tmp_path: Path
) -> None:
    assert old in PROGRAM
    (tmp_path / "p.py").write_text(PROGRAM.replace(old, new, 1))
    verdict = replay(base / "base.jmb", tmp_path / "p.py", tmp_path / "t.jmb")
    first = verdict.first_divergence
    assert first is not None
    assert (first.module, first.cause, first.evidence) == (module, cause, evidence)
    assert sum(row.status.failed for row in verdict.records) == 1


def test_a_mode_that_changes_nothing_is_no_difference(base: Path, tmp_path: Path) -> None:
    plain = PROGRAM.replace("nn.Dropout(0.1)", "nn.Dropout(0.0)")
    (tmp_path / "a.py").write_text(plain)
    (tmp_path / "b.py").write_text(plain.replace("    net.eval()\n", ""))
    record(tmp_path / "a.py", tmp_path / "a.jmb")
    verdict = replay(tmp_path / "a.jmb", tmp_path / "b.py", tmp_path / "t.jmb", noise=1.0)
    assert verdict.verdict is Outcome.PASS, verdict.first_divergence
