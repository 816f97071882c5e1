"""Patterns of public training programs that once led a replay astray."""

# ruff: noqa: E501  lines of programs, as tables

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.verify.bundle import open_bundle
from joymigrate.verify.model import Outcome
from tests.verify.harness import record, replay

# Gradient accumulation: the model is called twice before its optimiser steps.
TWICE = """
import os, torch, torch.nn as nn, torch.distributed as dist
torch.manual_seed(0); torch.set_num_threads(1)
class Net(nn.Module):
    def __init__(self): super().__init__(); self.a = nn.Linear(4, 8); self.b = nn.Linear(8, 2)
    def forward(self, x): return self.b(torch.tanh(self.a(x)))
model = Net(); called = model
if os.environ.get("WRAPPED") == "ddp":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    called = nn.parallel.DistributedDataParallel(model)
if os.environ.get("WRAPPED") == "compile":
    called = torch.compile(model, backend="eager")
optimiser = torch.optim.SGD(called.parameters(), lr=0.1)
for step in range(3):
    for part in range(2):
        called(torch.randn(6, 4)).pow(2).mean().backward()
    optimiser.step(); optimiser.zero_grad()
"""

# Norms in float32 around a model that computes in another type.
FLOATING = """
import torch, torch.nn as nn
torch.manual_seed(0); torch.set_num_threads(1)
class Norm32(nn.GroupNorm):
    def forward(self, x): return super().forward(x.float()).type(x.dtype)
class Net(nn.Module):
    def __init__(self): super().__init__(); self.conv = nn.Conv1d(4, 8, 3); self.norm = Norm32(2, 8); self.out = nn.Linear(6, 3)
    def forward(self, x):
        x = self.out(self.norm(self.conv(x)))
        return torch.softmax(x, -1, dtype=torch.float32).to(torch.float32) + torch.zeros(1, dtype=torch.float32)
model = Net(); optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.randn(2, 4, 8)).pow(2).mean().backward(); optimiser.step(); optimiser.zero_grad()
"""


# Only one of two results that one function made is used: torch gives no gradient for the other.
HALVES = """
import torch, torch.nn as nn
torch.manual_seed(0); torch.set_num_threads(1)
class Split(nn.Module):
    def __init__(self): super().__init__(); self.a = nn.Linear(4, 8)
    def forward(self, x): return self.a(x).chunk(2, -1)
class Net(nn.Module):
    def __init__(self): super().__init__(); self.split = Split(); self.b = nn.Linear(4, 2)
    def forward(self, x): return self.b(self.split(x)[0])
model = Net(); optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.randn(6, 4)).pow(2).mean().backward(); optimiser.step(); optimiser.zero_grad()
"""


def test_a_result_without_a_gradient_ends_nothing(tmp_path: Path) -> None:
    program = tmp_path / "p.py"
    program.write_text(HALVES)
    record(program, tmp_path / "base.jmb")
    verdict = replay(tmp_path / "base.jmb", program, tmp_path / "target.jmb")
    assert verdict.verdict is Outcome.PASS, verdict.first_divergence


# The loader has workers where the program finds a device, and its dataset reads values of tensors.
WORKERS = """
import os, torch, torch.nn as nn
torch.manual_seed(0); torch.set_num_threads(1)
class Data(torch.utils.data.Dataset):
    def __init__(self): self.x = torch.randn(12, 4); self.y = torch.arange(12) % 2
    def __len__(self): return 12
    def __getitem__(self, at): return self.x[at] * float(os.environ.get("SCALE", 1)), int(self.y[at])
n = int(os.environ.get("N", 0)); how = {"multiprocessing_context": "fork"} if n else {}
loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=n, **how)
model = nn.Linear(4, 2); optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x), y); loss.backward()
    optimiser.step(); optimiser.zero_grad(); loss.item()
"""


@pytest.mark.slow
def test_a_dataset_may_run_in_workers_on_one_side_alone(tmp_path: Path) -> None:
    program, base = tmp_path / "p.py", tmp_path / "base.jmb"
    program.write_text(WORKERS)
    record(program, base)
    verdict = replay(base, program, tmp_path / "target.jmb", {"N": "1"})
    assert verdict.verdict is Outcome.PASS, verdict.first_divergence
    wrong = replay(base, program, tmp_path / "wrong.jmb", {"N": "1", "SCALE": "1.01"})
    assert wrong.first_divergence is not None
    assert wrong.first_divergence.stage == "S1"


@pytest.mark.parametrize("wrapper", ["ddp", "compile"])
def test_a_wrapper_called_twice_in_a_step_counts_as_its_model(wrapper: str, tmp_path: Path) -> None:
    program = tmp_path / "p.py"
    program.write_text(TWICE)
    record(program, tmp_path / "base.jmb")
    verdict = replay(tmp_path / "base.jmb", program, tmp_path / "target.jmb", {"WRAPPED": wrapper})
    assert verdict.verdict is Outcome.PASS, verdict.first_divergence
    # Modules inside of a compiled graph are not seen, and say so.
    unseen = {"UNCOMPARED"} if wrapper == "compile" else set()
    assert {r.status.value for r in verdict.records} <= {"IDENTICAL", "PASS", *unseen}


def test_casts_to_float32_do_not_prevent_a_golden(tmp_path: Path) -> None:
    program = tmp_path / "p.py"
    program.write_text(FLOATING)
    record(program, tmp_path / "base.jmb")
    assert open_bundle(tmp_path / "base.jmb").ranks[0].program["notes"] == []
    verdict = replay(tmp_path / "base.jmb", program, tmp_path / "target.jmb")
    assert verdict.verdict is Outcome.PASS


# A program that builds another normalisation on a device than without one.
CHOOSING = """
import os, torch, torch.nn as nn
torch.manual_seed(0); torch.set_num_threads(1)
class Centred(nn.Module):
    def __init__(self): super().__init__(); self.weight = nn.Parameter(torch.ones(8)); self.bias = nn.Parameter(torch.zeros(8))
    def forward(self, x): return torch.tanh(x) * x.abs().sqrt() * self.weight + self.bias
norm = Centred() if os.environ.get("DEVICE") else nn.LayerNorm(8)
model = nn.Sequential(nn.Linear(4, 8), norm, nn.Linear(8, 2))
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.randn(6, 4)).pow(2).mean().backward(); optimiser.step(); optimiser.zero_grad()
"""


def test_a_wrong_module_of_another_class_is_named_with_both_classes(tmp_path: Path) -> None:
    program = tmp_path / "p.py"
    program.write_text(CHOOSING)
    record(program, tmp_path / "base.jmb")
    first = replay(
        tmp_path / "base.jmb", program, tmp_path / "target.jmb", {"DEVICE": "1"}
    ).first_divergence
    assert first is not None
    assert (first.module, first.cause) == ("1", "another module")
    assert first.evidence == "the module is Centred here and LayerNorm in the baseline"
