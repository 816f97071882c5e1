"""Modules that enter autocast inside of their own forward: the float32 pass is float32 there too."""

# ruff: noqa: E501  lines of programs, as tables

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from joymigrate.verify.bundle import open_bundle
from joymigrate.verify.cut import Cut
from joymigrate.verify.mixed_precision import held_off
from joymigrate.verify.model import Outcome
from joymigrate.verify.watch_stage import UNTOLD
from tests.verify.harness import record, replay

PROGRAM = """
import torch, torch.nn as nn
torch.manual_seed(0); torch.set_num_threads(1)
class Block(nn.Module):
    def __init__(self): super().__init__(); self.a = nn.Linear(8, 16); self.b = nn.Linear(16, 8)
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.b(torch.tanh(self.a(x)))
        return x + y.float()
class Net(nn.Module):
    def __init__(self): super().__init__(); self.block = Block(); self.norm = nn.LayerNorm(8, eps=1e-5); self.out = nn.Linear(8, 3)
    def forward(self, x): return self.out(self.norm(self.block(x)))
model = Net(); optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.randn(6, 8)).pow(2).mean().backward(); optimiser.step(); optimiser.zero_grad()
"""
HALF = '        with torch.autocast("cpu", dtype=torch.bfloat16):\n    '


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "p.py").write_text(PROGRAM)
    (folder / "single.py").write_text(PROGRAM.replace(HALF, ""))
    record(folder / "p.py", folder / "p.jmb")
    record(folder / "single.py", folder / "single.jmb")
    return folder


@pytest.mark.slow
def test_the_float32_pass_of_such_a_module_is_exact(base: Path) -> None:
    rank = open_bundle(base / "p.jmb").ranks[0]
    (lesson,) = rank.json("forced.json")["lessons"]
    assert lesson["mixed"] == ["block"]
    assert lesson["native"]
    cuts = [Cut(*row) for row in lesson["rows"]]
    own = {(cut.path, cut.kind): (cut.error32, cut.error) for cut in cuts}
    exact, native = own["block.a", "out"]
    assert exact < 2.0**-22  # float32
    assert native > 2.0**-12  # bfloat16, in the pass that is the program's own


@pytest.mark.parametrize(
    ("old", "new", "module"),
    [
        ("torch.tanh(self.a(x))", "torch.tanh(self.a(x)) * 1.0005", "block"),  # below bf16 rounding
        ("x + y.float()", "x + 1.0005 * y.float()", "block"),
        ("eps=1e-5", "eps=1.2e-5", "norm"),
    ],
)
def test_a_fault_below_the_rounding_of_that_type_is_named(
    old: str, new: str, module: str, base: Path, tmp_path: Path
) -> None:
    (tmp_path / "p.py").write_text(PROGRAM.replace(old, new))
    first = replay(base / "p.jmb", tmp_path / "p.py", tmp_path / "t.jmb").first_divergence
    assert first is not None
    assert (first.module, first.stage) == (module, "S3")


def test_the_same_program_passes(base: Path, tmp_path: Path) -> None:
    verdict = replay(base / "p.jmb", base / "p.py", tmp_path / "t.jmb", noise=1.0)
    assert verdict.verdict is Outcome.PASS
    assert {"S3", "S4"} <= {stage.stage for stage in verdict.stages if stage.compared}


def test_without_autocast_the_target_is_more_exact_and_passes(base: Path, tmp_path: Path) -> None:
    verdict = replay(base / "p.jmb", base / "single.py", tmp_path / "t.jmb")
    assert verdict.verdict is Outcome.PASS


def test_autocast_that_only_the_target_enters_is_named(base: Path, tmp_path: Path) -> None:
    first = replay(base / "single.jmb", base / "p.py", tmp_path / "t.jmb").first_divergence
    assert first is not None
    assert first.module.startswith("block")
    assert first.stage == "S3"


def test_code_that_cannot_run_without_autocast_is_replayed_with_it(tmp_path: Path) -> None:
    text = PROGRAM.replace("self.a(x)", "self.a(x.bfloat16())").replace(
        "(8, 16)", "(8, 16).float()"
    )
    (tmp_path / "p.py").write_text(text)
    rank = record(tmp_path / "p.py", tmp_path / "p.jmb").ranks[0]
    (lesson,) = rank.json("forced.json")["lessons"]
    assert lesson["mixed"] == []
    verdict = replay(tmp_path / "p.jmb", tmp_path / "p.py", tmp_path / "t.jmb")
    assert verdict.verdict is Outcome.PASS


def test_autocast_is_held_off_where_asked_and_comes_back() -> None:
    a = torch.ones(2, 2)
    with held_off(lambda: True), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.mm(a, a).dtype is torch.float32
    with held_off(lambda: False), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.mm(a, a).dtype is torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.mm(a, a).dtype is torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")


NARROW = """
import os, torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
dtype = getattr(torch, os.environ.get("DTYPE", "float32"))
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(dtype)
optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.Generator().manual_seed(1)
for step in range(8):
    x = torch.randn(8, 16, generator=data)
    loss = (model(x.to(dtype)).float() - x[:, :4]).square().mean()
    optimiser.zero_grad(); loss.backward(); optimiser.step()
"""
DOUBLE = "\n    x = x * 2 if step >= 6 else x\n    loss"


def test_a_run_in_fewer_digits_is_held_to_the_rounding_of_those(tmp_path: Path) -> None:
    """All of a run differs by the rounding of bfloat16, also what the model is given; twice the
    data in a later step are other data, and sizes of updates can't be told."""
    (tmp_path / "p.py").write_text(NARROW)
    (tmp_path / "wrong.py").write_text(NARROW.replace("\n    loss", DOUBLE, 1))
    record(tmp_path / "p.py", tmp_path / "b.jmb", runs=2)
    narrow = {"DTYPE": "bfloat16"}
    found = replay(tmp_path / "b.jmb", tmp_path / "p.py", tmp_path / "t.jmb", narrow)
    assert found.verdict is Outcome.PASS, (found.reason, found.first_divergence)
    told = {str(row.op).partition(" ")[0] for row in found.records if row.stage == "S5W"}
    left = [str(item["what"]) for item in found.uncovered if item["reason"] == UNTOLD]
    assert {"input", "loss"} <= told
    assert any(what.startswith("size of the update") for what in left)
    wrong = replay(tmp_path / "b.jmb", tmp_path / "wrong.py", tmp_path / "w.jmb", narrow)
    first = wrong.first_divergence
    assert first is not None
    assert (first.stage, first.op, first.step) == ("S5W", "input 0", 6)
