"""The command line: record, replay, compare, show, pack, and their exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.verify.faults import FAULTS, PROGRAMS

PROGRAM = PROGRAMS / "ranking.py"


def joy(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "joymigrate", "verify", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        check=False,
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    made = joy("record", "-o", "base.jmb", "--", "python", PROGRAM, cwd=folder)
    assert made.returncode == 0, made.stderr
    assert len(made.stdout.splitlines()) == 4  # the program's own lines, nothing of ours
    assert "3 steps" in made.stderr
    return folder / "base.jmb"


def test_the_same_program_passes(base: Path, tmp_path: Path) -> None:
    made = joy("replay", base, "--format", "json", "--", "python", PROGRAM, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    document = json.loads(made.stdout)  # what the program prints went to stderr
    assert document["schema"] == "joymigrate.verdict/1"
    assert (document["verdict"], document["first_divergence"]) == ("pass", None)
    free = next(stage for stage in document["stages"] if stage["stage"] == "S5")
    assert (free["verdict"], free["recorded"] - free["compared"]) == ("pass", 2)


def test_a_fault_is_named_and_fails(base: Path, tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "interaction with itself")
    (tmp_path / "target.py").write_text(fault.source())
    made = joy(
        *("replay", base, "--format", "json", "-o", "v.json", "--", "python", "target.py"),
        cwd=tmp_path,
    )
    assert made.returncode == 1, made.stderr
    first = json.loads((tmp_path / "v.json").read_text())["first_divergence"]
    assert (first["module"], first["phase"]) == ("interact", "forward")


@pytest.mark.slow
def test_renamed_modules_compare_by_order_and_by_map(base: Path, tmp_path: Path) -> None:
    text = PROGRAM.read_text().replace("self.bottom", "self.dense_tower")
    (tmp_path / "target.py").write_text(text)
    (tmp_path / "names.yaml").write_text("bottom: dense_tower\n")
    for options in ((), ("--map", "names.yaml")):
        made = joy("replay", base, *options, "--", "python", "target.py", cwd=tmp_path)
        assert made.returncode == 0, made.stdout + made.stderr


def test_a_program_that_breaks_is_inconclusive(base: Path, tmp_path: Path) -> None:
    (tmp_path / "target.py").write_text(PROGRAM.read_text() + "\nraise SystemExit(7)\n")
    made = joy("replay", base, "--", "python", "target.py", cwd=tmp_path)
    assert made.returncode == 3
    assert "ended with 7" in made.stdout


def test_a_missing_bundle_is_our_users_mistake(tmp_path: Path) -> None:
    made = joy("replay", "no.jmb", "--", "python", PROGRAM, cwd=tmp_path)
    assert made.returncode == 2
    assert "no such bundle" in made.stderr


def test_an_existing_bundle_is_kept(base: Path, tmp_path: Path) -> None:
    made = joy("record", "-o", base, "--", "python", PROGRAM, cwd=tmp_path)
    assert made.returncode == 2
    assert "--force" in made.stderr


def test_a_packed_bundle_compares_to_its_folder(base: Path, tmp_path: Path) -> None:
    assert joy("pack", base, "-o", "packed.tar", cwd=tmp_path).returncode == 0
    made = joy("compare", base, "packed.tar", cwd=tmp_path)
    assert made.returncode == 0, made.stdout + made.stderr
    assert joy("show", "packed.tar", "--privacy", cwd=tmp_path).returncode == 0


CLOCK = """
import os, time, torch
torch.manual_seed(0); torch.set_num_threads(1)
begun, own = torch.tensor(time.time() % 100), torch.tensor([os.getpid()]) * 2
class Net(torch.nn.Linear):
    def forward(self, x, now): return super().forward(x) + 0 * now
net = Net(5, 1)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    loss = net(torch.randn(16, 5), time.time() % 10).square().mean()
    optimiser.zero_grad(); loss.backward(); optimiser.step()
    print("rate", (loss.detach() * 0 + begun).item(), "of", own.item())
"""


@pytest.mark.slow
def test_what_the_original_does_not_repeat_is_named_and_not_judged(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(CLOCK)
    made = joy("record", "-o", "base.jmb", "--", "python", "p.py", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    made = joy("replay", "base.jmb", "--", "python", "p.py", cwd=tmp_path)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "not covered: inputs of net (1): the baseline does not repeat it" in made.stdout
    (tmp_path / "p.py").write_text(CLOCK.replace(".mean()", ".sum()"))
    assert joy("replay", "base.jmb", "--", "python", "p.py", cwd=tmp_path).returncode == 1


DIVIDED = """
import os, torch, torch.nn as nn, torch.distributed as dist
torch.manual_seed(0); torch.set_num_threads(1)
world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.a = nn.Linear(8, 70); self.b = nn.Linear(70, 3)
    def forward(self, x): return self.b(torch.tanh(self.a(x)))
net = Net(); model = net
if world > 1:
    dist.init_process_group("gloo"); model = nn.parallel.DistributedDataParallel(net)
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
g = torch.Generator().manual_seed(5)
for step in range(3):
    x, y = torch.randn(8, 8, generator=g), torch.randint(0, 3, (8,), generator=g)
    n = 8 // world; x, y = x[rank * n : (rank + 1) * n], y[rank * n : (rank + 1) * n]
    loss = nn.functional.cross_entropy(model(x), y)
    optimiser.zero_grad(); loss.backward(); optimiser.step()
if world > 1: dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(DIVIDED)
    assert joy("record", "-o", "one.jmb", "--", "python", "p.py", cwd=tmp_path).returncode == 0
    made = joy(
        *("record", "-o", "two.jmb", "--", "torchrun", "--nproc-per-node", "2", "p.py"),
        cwd=tmp_path,
    )
    assert made.returncode == 0, made.stderr
    found = joy("compare", "one.jmb", "two.jmb", "--format", "json", cwd=tmp_path)
    document = json.loads(found.stdout)
    assert document["verdict"] == "pass", document["reason"]
    worst = max(r["value"] for r in document["records"] if r["stage"] == "S5" and r["value"])
    assert worst < 4e-6  # float32 sums of eight rows in another order


@pytest.mark.slow
def test_bisect_teaches_the_window_where_a_run_departs(tmp_path: Path) -> None:
    text = (PROGRAMS / "transformer.py").read_text()
    (tmp_path / "base.py").write_text(text)
    fault = "return 1.01 * self.drop(self.down_proj("
    (tmp_path / "target.py").write_text(text.replace("return self.drop(self.down_proj(", fault))
    made = joy(*("record", "--stats-only", "-o", "s.jmb", "--", "python", "base.py"), cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    made = joy("bisect", "s.jmb", "--format", "json", "--", "python", "target.py", cwd=tmp_path)
    assert made.returncode == 1, made.stderr
    first = json.loads(made.stdout)["first_divergence"]
    assert (first["module"], first["stage"]) == ("layers.0.mlp", "S3")
