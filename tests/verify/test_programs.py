"""Programs of every shape: recorded without a change, replayed, judged."""

# ruff: noqa: E501  lines of programs, as tables

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.verify.model import Verdict
from tests.verify.harness import execute, record, replay

HEAD = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0); torch.set_num_threads(1)
"""

GAN = (
    HEAD
    + """
class G(nn.Module):
    def __init__(self):
        super().__init__(); self.net = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 8))
    def forward(self, z): return self.net(z)
class D(nn.Module):
    def __init__(self):
        super().__init__(); self.net = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    def forward(self, x): return self.net(x)
netG, netD = G(), D()
optD = torch.optim.Adam(netD.parameters(), lr=1e-3); optG = torch.optim.Adam(netG.parameters(), lr=1e-3)
for i in range(3):
    real, z = torch.randn(6, 8), torch.randn(6, 4)
    fake = netG(z)
    lossD = F.softplus(-netD(real)).mean() + F.softplus(netD(fake.detach())).mean()
    optD.zero_grad(); lossD.backward(); optD.step()
    optG.zero_grad(); F.softplus(-netD(fake)).mean().backward(); optG.step()
"""
)

INFERENCE = (
    HEAD
    + """
class Cell(nn.Module):
    def __init__(self): super().__init__(); self.ff = nn.Linear(16, 16); self.norm = nn.LayerNorm(16)
    def forward(self, x, scale=1.0): return self.norm(torch.tanh(self.ff(x)) * scale + x)
class LM(nn.Module):
    def __init__(self):
        super().__init__(); self.embed = nn.Embedding(32, 16); self.cells = nn.ModuleList([Cell(), Cell()]); self.head = nn.Linear(16, 32)
        self.head.weight = self.embed.weight
    def forward(self, ids):
        x = self.embed(ids)
        for c in self.cells: x = c(x, scale=0.5)
        return self.head(x)
    @torch.no_grad()
    def generate(self, ids, n):
        for _ in range(n): ids = torch.cat([ids, self(ids)[:, -1:].argmax(-1)], 1)
        return ids
model = LM().eval()
print(model.generate(torch.tensor([[1, 2, 3]]), 5).tolist())
"""
)

MIXED = (
    HEAD
    + """
from dataclasses import dataclass
from torch.utils.checkpoint import checkpoint
@dataclass
class Out: logits: torch.Tensor; hidden: list
class Block(nn.Module):
    def __init__(self): super().__init__(); self.a = nn.Linear(16, 32); self.b = nn.Linear(32, 16); self.drop = nn.Dropout(0.2)
    def forward(self, x): return x + self.drop(self.b(F.gelu(self.a(x))))
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.blocks = nn.ModuleList(Block() for _ in range(2)); self.shared = nn.Linear(16, 16); self.head = nn.Linear(16, 4)
    def forward(self, x):
        hidden = []
        for b in self.blocks:
            x = checkpoint(b, x, use_reentrant=False); x = self.shared(x); hidden.append(x)
        return Out(self.head(x), hidden)
def train():
    network = Net(); opt = torch.optim.SGD(network.parameters(), lr=0.1); scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for i in range(4):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = network(torch.randn(8, 16)); loss = out.logits.float().pow(2).mean()
        opt.zero_grad(); scaler.scale(loss).backward(); scaler.step(opt); scaler.update()
        print(loss.item())
train()
"""
)

COMPILED = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self): super().__init__(); self.a = nn.Linear(8, 8); self.b = nn.Linear(8, 1)
    def forward(self, x): return self.b(torch.relu(self.a(x)))
model = torch.compile(Net(), backend="eager")
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(3):
    loss = model(torch.randn(4, 8)).mean(); opt.zero_grad(); loss.backward(); opt.step()
    print(loss.item())
"""
)

BY_HAND = (
    HEAD
    + """
net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
for i in range(3):
    loss = net(torch.ones(2, 6) * (i + 1)).pow(2).sum(); net.zero_grad(); loss.backward()
    with torch.no_grad():
        for p in net.parameters(): p -= 0.01 * p.grad
    print(loss.item())
"""
)

LSTM = (
    HEAD
    + """
class Tagger(nn.Module):
    def __init__(self): super().__init__(); self.rnn = nn.LSTM(5, 7, batch_first=True, bidirectional=True); self.att = nn.MultiheadAttention(14, 2, dropout=0.1, batch_first=True); self.out = nn.Linear(14, 3)
    def forward(self, x):
        y, (h, c) = self.rnn(x); z, _ = self.att(y, y, y, need_weights=False); return {"scores": self.out(y + z), "state": (h, c)}
tagger = Tagger(); opt = torch.optim.Adam(tagger.parameters())
for i in range(3):
    out = tagger(torch.randn(2, 4, 5)); loss = out["scores"].logsumexp(-1).mean(); opt.zero_grad(); loss.backward(); opt.step()
    print(loss.item())
"""
)

ALL = {
    "gan": GAN, "inference": INFERENCE, "mixed": MIXED, "compiled": COMPILED, "by hand": BY_HAND,
    "lstm": LSTM,
}  # fmt: skip


def verdict(tmp_path: Path, before: str, after: str, **more: object) -> Verdict:
    a, b = tmp_path / "base.py", tmp_path / "target.py"
    a.write_text(before)
    b.write_text(after)
    record(a, tmp_path / "a.jmb")
    return replay(tmp_path / "a.jmb", b, tmp_path / "b.jmb", **more)


@pytest.mark.parametrize("name", ALL)
def test_the_same_program_passes_and_is_covered(name: str, tmp_path: Path) -> None:
    found = verdict(tmp_path, ALL[name], ALL[name])
    assert found.verdict.value == "pass", (found.reason, found.first_divergence)
    assert found.coverage.modules == 1.0
    stages = {stage.stage: stage.verdict.value for stage in found.stages}
    assert stages["S3"] == "pass"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gan", "mixed", "by hand", "lstm"])
def test_another_chips_rounding_passes(name: str, tmp_path: Path) -> None:
    found = verdict(tmp_path, ALL[name], ALL[name], noise=1.0)
    assert found.verdict.value == "pass", (found.reason, found.first_divergence)


@pytest.mark.parametrize(
    ("name", "old", "new", "module", "phase"),
    [
        ("gan", "nn.Linear(8, 16), nn.LeakyReLU(0.2)", "nn.Linear(8, 16), nn.LeakyReLU(0.1)", "netD.net.1", "forward"),
        ("gan", "nn.Linear(4, 16), nn.LeakyReLU(0.2)", "nn.Linear(4, 16), nn.ReLU()", "netG.net.1", "forward"),
        ("gan", "optG = torch.optim.Adam(netG.parameters(), lr=1e-3)", "optG = torch.optim.Adam(netG.parameters(), lr=2e-3)", "netG.net.0", "optimiser"),
        ("inference", "* scale + x", "* scale + 0.999 * x", "cells.0", "forward"),
        ("inference", "torch.tanh(self.ff(x))", "F.softsign(self.ff(x))", "cells.0", "forward"),
        ("mixed", "F.gelu(self.a(x))", "F.gelu(self.a(x), approximate='tanh')", "blocks.0", "forward"),
        ("mixed", "x = self.shared(x)", "x = self.shared(x) + 0.01", "network", "forward"),
        ("compiled", "torch.relu(self.a(x))", "torch.relu(self.a(x) + 0.01)", "model", "forward"),
        ("by hand", "p -= 0.01 * p.grad", "p -= 0.012 * p.grad", "0", "optimiser"),
        ("lstm", "self.out(y + z)", "self.out(y - z)", "tagger", "forward"),
    ],
)  # fmt: skip
def test_a_fault_is_named(
    name: str, old: str, new: str, module: str, phase: str, tmp_path: Path
) -> None:
    assert old in ALL[name]
    found = verdict(tmp_path, ALL[name], ALL[name].replace(old, new))
    first = found.first_divergence
    assert first is not None, found.reason
    assert (first.module, first.phase) == (module, phase), first
    assert len([r for r in found.records if r.status.failed]) == 1


SLOW = pytest.mark.slow
SOME = [n if n in ("gan", "mixed") else pytest.param(n, marks=SLOW) for n in ALL]


@pytest.mark.parametrize("name", SOME)
def test_recording_changes_no_bit(name: str, tmp_path: Path) -> None:
    from joymigrate.verify.settings import RecordingSettings

    program = tmp_path / "p.py"
    program.write_text(ALL[name])
    plain = execute(program, None, {})
    for level in ("modules", "ops"):
        settings = RecordingSettings(bundle=str(tmp_path / f"{level}.jmb"), level=level)
        assert execute(program, settings, {}) == plain
