"""Faults that leave the first step as it is, and constants that carry rounding of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verify.harness import record, replay

PROGRAM = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.out = nn.Linear(8, 12), nn.Linear(12, 3)

    def forward(self, x, t):
        f = torch.exp(-torch.arange(4) * 0.5)
        e = t[:, None].float() * f[None]
        return self.out(torch.tanh(x + self.time(torch.cat([e.sin(), e.cos()], -1))))

torch.manual_seed(0)
net, teacher = Net(), Net().eval()
teacher.load_state_dict(net.state_dict())
speed = [torch.zeros_like(p) for p in net.parameters()]
for step in range(3):
    x, t, y = torch.randn(8, 12), torch.randint(0, 100, (8,)), torch.randint(0, 3, (8,))
    with torch.no_grad():
        soft = teacher(x, t).softmax(-1)
    out = net(x, t)
    loss = nn.functional.cross_entropy(out, y) + nn.functional.cross_entropy(out, soft)
    loss.backward()
    with torch.no_grad():
        for p, v in zip(net.parameters(), speed):
            p.sub_(0.05 * v.mul_(0.9).add_(p.grad))
            p.grad = None
        for p, q in zip(teacher.parameters(), net.parameters()):
            p.lerp_(q, 0.01)
sampler = torch.Generator().manual_seed(8)
with torch.no_grad():
    for draw in range(3):
        chance = (net(x, t) / 0.8).softmax(-1)
        x = x + 0.1 * torch.multinomial(chance, 1, generator=sampler)
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("later")
    (folder / "train.py").write_text(PROGRAM)
    record(folder / "train.py", folder / "base.jmb")
    return folder


@pytest.mark.parametrize(
    ("old", "new", "root", "phase", "step"),
    [
        ("mul_(0.9)", "mul_(0.8)", "speed", "optimiser", 1),
        pytest.param("0.05 * v", "0.06 * v", "net", "optimiser", 0, marks=pytest.mark.slow),
        ("p.grad = None", "pass", "loss", "gradients", 1),
        ("/ 0.8", "/ 0.9", "result", "output", 3),
        pytest.param(
            "_seed(8)",
            "_seed(9)",
            "random numbers of generator 0",
            "state",
            3,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "p.lerp_(q, 0.01)", "p.lerp_(q, 0.1)", "teacher", "state", 0, marks=pytest.mark.slow
        ),
    ],
    ids=[
        "momentum by hand",
        "rate by hand",
        "gradients not cleared",
        "temperature of a draw",
        "seed of a draw",
        "rate of the average",
    ],
)
def test_a_fault_of_the_loop_is_found_where_it_shows(
    old: str, new: str, root: str, phase: str, step: int, base: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM.replace(old, new))
    found = replay(base / "base.jmb", tmp_path / "train.py", tmp_path / "t.jmb")
    first = found.first_divergence
    assert first is not None, found.reason
    assert (first.module.split(".")[0], first.phase, first.step) == (root, phase, step), first
    assert sum(row.status.failed for row in found.records) == 1


def test_other_rounding_of_constants_made_inside_is_no_fault(base: Path, tmp_path: Path) -> None:
    """sin(t · f) with t up to 100 carries the last bit of f far; the golden is float64 all the
    same, though the constants name no dtype."""
    found = replay(base / "base.jmb", base / "train.py", tmp_path / "t.jmb", noise=1.0)
    assert found.verdict.value == "pass", (found.reason, found.first_divergence)
    notes = (found.baseline or {}).get("notes", [])
    assert not any("golden" in note for note in notes), notes
