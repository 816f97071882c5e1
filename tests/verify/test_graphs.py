"""Programs that hold their models as graphs: recorded, judged at the boundary, and told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.verify.model import Outcome, Verdict
from tests.verify.harness import record, replay

# One program makes a graph of its net in one of the ways below and trains it.
PROGRAM = """
import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore")
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.a, self.drop = nn.LayerNorm(8), nn.Linear(8, 8), nn.Dropout(0.1)
        self.gain = 1.0

    def forward(self, x):
        return x + self.drop(torch.relu(self.a(self.norm(x)))) * self.gain


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.blocks = nn.Linear(4, 8), nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.blocks(self.up(x)))


@torch.jit.script
def bent(x: torch.Tensor) -> torch.Tensor:
    return x + 0.1 * torch.relu(x)


@torch.jit.script
def slope(x: torch.Tensor) -> torch.Tensor:
    found = torch.autograd.grad([(x * x).sum()], [x])[0]
    return found if found is not None else x


net = Net()
MAKE
optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    x, y = torch.randn(4, 4), torch.randint(0, 3, (4,))
    loss = nn.functional.cross_entropy(bent(model(x)), y)
    loss = loss * 1.0
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    print(step, loss.item())
print(slope(torch.ones(2, requires_grad=True)).tolist())
"""
WAYS = {
    "script": "model = torch.jit.script(net)",
    "part": "net.blocks = torch.jit.script(net.blocks); model = net",
    "trace": "model = torch.jit.trace(net.eval(), torch.randn(4, 4))",
    "fx": "model = torch.fx.symbolic_trace(net)",
    "export": "model = torch.export.export(net.eval(), (torch.randn(4, 4),)).module()",
    "compile": 'model = torch.compile(net, backend="eager", fullgraph=True)',
}
HIDDEN = {"script": 11, "part": 8, "trace": 11, "fx": 0, "export": 9, "compile": 11}
INSIDE = ("self.gain = 1.0", "self.gain = 1.01")
LOSS = ("loss = loss * 1.0", "loss = loss * 1.1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs")


def program(folder: Path, way: str, change: tuple[str, str] | None = None) -> Path:
    text = PROGRAM.replace("MAKE", WAYS[way])
    path = folder / f"{way}{'' if change is None else abs(hash(change))}.py"
    path.write_text(text if change is None else text.replace(*change))
    return path


def judge(folder: Path, way: str, change: tuple[str, str] | None = None) -> Verdict:
    base = folder / f"{way}.jmb"
    if not base.exists():
        record(program(folder, way), base)
    target = program(folder, way, change)
    return replay(base, target, target.with_suffix(".target.jmb"), {}, noise=1.0)


SLOW = [pytest.param(way, marks=pytest.mark.slow) for way in ("part", "fx", "export")]


@pytest.mark.parametrize("way", ["script", "trace", "compile", *SLOW])
def test_a_graph_passes_and_what_it_hides_is_named(way: str, folder: Path) -> None:
    found = judge(folder, way)
    assert found.verdict is Outcome.PASS, found.first_divergence
    assert found.covered["loss"]["of"] == found.covered["loss"]["compared"] > 0
    hidden = [item["count"] for item in found.uncovered if item["what"] == "modules"]
    assert hidden[:1] == ([HIDDEN[way]] if HIDDEN[way] else [])  # torch 2.5 exports two graphs


@pytest.mark.parametrize("way", ["script", SLOW[0]])
def test_a_fault_inside_of_a_graph_fails_at_its_boundary(way: str, folder: Path) -> None:
    found = judge(folder, way, INSIDE)
    assert found.verdict is Outcome.FAIL
    assert found.first_divergence is not None
    assert found.first_divergence.module == ("blocks" if way == "part" else "model")
    assert sum(row.status.failed for row in found.records) == 1


@pytest.mark.slow
def test_a_wrong_loss_behind_a_scripted_function_is_named(folder: Path) -> None:
    found = judge(folder, "script", LOSS)
    assert found.first_divergence is not None
    assert found.first_divergence.phase == "loss"
    assert sum(row.status.failed for row in found.records) == 1


FUNCTIONS = """
import torch
from torch import nn

torch.manual_seed(0)


@torch.compile(backend="eager", fullgraph=True)
def bent(x):
    return nn.functional.gelu(x) * 1.5


@torch.compile(backend="eager", fullgraph=True)
def loss_of(out, y):
    return ((out - y) ** 2).mean() * 1.0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.b(bent(self.a(x)))


net = Net()
opt = torch.optim.AdamW(net.parameters(), 1e-2)
x, y = torch.randn(4, 8), torch.randn(4, 4)
for _ in range(4):
    opt.zero_grad()
    loss = loss_of(net(x), y)
    loss.backward()
    opt.step()
with torch.inference_mode():
    score = torch.compile(nn.Linear(4, 1), backend="eager", fullgraph=True)
    print(score(net(torch.randn(2, 8)).sigmoid()).sum().item(), loss.item())
"""


def test_compiled_functions_are_recorded_and_a_wrong_loss_in_one_fails(tmp_path: Path) -> None:
    """`fullgraph=True` refuses a tape in its graph; tensors of inference mode count no versions."""
    plain, wrong = tmp_path / "plain.py", tmp_path / "wrong.py"
    plain.write_text(FUNCTIONS)
    wrong.write_text(FUNCTIONS.replace(".mean() * 1.0", ".mean() * 1.1"))
    record(plain, tmp_path / "base.jmb")
    again = replay(tmp_path / "base.jmb", plain, tmp_path / "again.jmb", {}, noise=1.0)
    assert again.verdict is Outcome.PASS, again.first_divergence
    assert again.covered["loss"]["compared"] > 0
    assert any("torch.compile" in str(item["reason"]) for item in again.uncovered)
    found = replay(tmp_path / "base.jmb", wrong, tmp_path / "wrong.jmb", {}, noise=1.0)
    assert found.first_divergence is not None
    assert found.first_divergence.phase == "loss"
