"""Models that get modules after their first call: constructors that call a part, adapters."""

from __future__ import annotations

from pathlib import Path

from joymigrate.verify.model import Outcome
from tests.verify.harness import record, replay

PROGRAM = """
import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        with torch.no_grad():
            width = self.stem(torch.zeros(1, 6)).shape[1]
        self.drop = nn.Dropout(0.2)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3))

    def forward(self, x):
        return self.head(self.drop(torch.relu(self.stem(x))))


net = Net()
opt = torch.optim.SGD(net.parameters(), 1e-2)
for step in range(4):
    if step == 1:
        net.adapter = nn.Linear(3, 3)
        net.register_forward_hook(lambda module, args, out: out + module.adapter(out))
        opt.add_param_group({"params": net.adapter.parameters()})
    loss = net(torch.randn(4, 6)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_modules_that_are_added_later_are_taught_and_named(tmp_path: Path) -> None:
    """Without their names a program failed against itself: its dropouts drew elsewhere."""
    plain, wrong = tmp_path / "plain.py", tmp_path / "wrong.py"
    plain.write_text(PROGRAM)
    wrong.write_text(PROGRAM.replace("LayerNorm(width)", "LayerNorm(width, eps=1e-2)"))
    record(plain, tmp_path / "base.jmb")
    again = replay(tmp_path / "base.jmb", plain, tmp_path / "again.jmb", {}, noise=1.0)
    assert again.verdict is Outcome.PASS, again.first_divergence
    assert {"head.0", "adapter"} <= {row.module for row in again.records}
    found = replay(tmp_path / "base.jmb", wrong, tmp_path / "wrong.jmb", {}, noise=1.0)
    assert found.first_divergence is not None
    assert found.first_divergence.module == "head.0"
