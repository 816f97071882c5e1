"""A program's device memory, as the vendor's own allocator tells it on the simulated chip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from joymigrate.run.rehearse.memory.summary import ask, collect

pytestmark = pytest.mark.skipif(find_spec("torch_npu") is None, reason="needs joymigrate[ascend]")

# Weights of 4 * (64*256 + 256 + 256*8 + 8) bytes; AdamW keeps two such states and a step count.
TRAIN = """
import torch, torch_npu
from torch.optim.optimizer import register_optimizer_step_post_hook
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)).npu()
opt = torch.optim.AdamW(net.parameters())
heard = []  # by a hook behind ours: torch goes through all of them at once
torch.tensor(0, device="npu")
register_optimizer_step_post_hook(lambda *_: heard.append(1))
for _ in range(5):
    x = torch.randn(512, 64, device="npu")
    net(x).square().mean().backward()
    opt.step()
    torch.npu.reset_peak_memory_stats()
    opt.zero_grad()
assert torch.autograd.backward.__module__ == "torch.autograd", "the hooks are gone"
assert heard
"""
WEIGHTS = 4 * (64 * 256 + 256 + 256 * 8 + 8)


def seen(folder: Path, program: str, *options: str) -> tuple[list[dict[str, Any]], str]:
    """What the processes of a program noted; its output."""
    script = folder / "program.py"
    script.write_text(program, encoding="utf-8")
    notes = folder / "notes"
    ask(notes, "torch_npu", "npu")
    done = subprocess.run(
        [sys.executable, "-m", "joymigrate", "rehearse", *options, "--", "python", str(script)],
        env={**os.environ, "JOYMIGRATE_MEMORY": str(notes)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return collect(notes, rehearsal=True)["processes"], done.stdout


def test_weights_gradients_and_states_are_their_exact_sizes(tmp_path: Path) -> None:
    (one,), _ = seen(tmp_path, TRAIN, "--devices", "1")
    held = one["held"]
    assert (held["steps"], held["backwards"], held["ended"]) == (3, 3, "steps")
    assert (held["device"], held["unit"]) == ("npu:0", "step")
    last = held["points"][-1]
    assert last[1] == WEIGHTS
    assert last[3] == 2 * WEIGHTS  # the counts lie on the host
    assert max(row[2] for row in held["points"]) == WEIGHTS
    # The hidden layer before and after ReLU: 512 x 256 floats, or one of both where they share.
    assert max(row[4] for row in held["points"]) >= 4 * 512 * 256
    assert held["peak"]["total_bytes"] == sum(held["peak"]["bytes"].values())


def test_the_sum_is_the_allocators_but_for_its_rounding(tmp_path: Path) -> None:
    (one,), _ = seen(tmp_path, TRAIN.replace("torch.npu.reset_peak_memory_stats()", ""))
    held = one["held"]
    total, allocator = held["peak"]["total_bytes"], held["allocator_peak_bytes"]
    assert total <= allocator < 1.1 * total
    assert allocator <= one["peak_bytes"]["npu:0"]


def test_a_program_without_an_optimiser_has_weights_and_the_rest(tmp_path: Path) -> None:
    program = """
import time, torch, torch_npu
def main():
    net = torch.nn.Linear(100, 100, bias=False).npu()
    with torch.no_grad():
        for _ in range(10):
            net(torch.ones(1000, 100, device="npu"))
            time.sleep(0.1)
main()
"""
    (one,), _ = seen(tmp_path, program)
    held = one["held"]
    assert (held["steps"], held["unit"], held["ended"]) == (0, "event", "exit")
    assert held["peak"]["bytes"]["weights"] == 40000
    assert held["peak"]["bytes"]["other"] >= 400000
    assert len(one["timeline"]) > 2


def test_a_program_that_leaves_the_device_alone_leaves_no_note(tmp_path: Path) -> None:
    processes, out = seen(tmp_path, "import torch, torch_npu\nprint(torch.ones(2).sum().item())")
    assert processes == []
    assert out == "2.0\n"


def test_a_tensor_that_refuses_everything_does_not_reach_the_program(tmp_path: Path) -> None:
    program = TRAIN.replace(
        "for _ in range(5):",
        "class Odd(dict):\n    def values(self): raise KeyError('mine')\n"
        "opt.state[net[0].weight] = Odd()\nfor _ in range(0):",
    ).replace("assert", "opt.step()\nprint('through')\nassert")
    (one,), out = seen(tmp_path, program)
    assert "through" in out
    assert one["held"] is None
    assert "mine" in one["why_not"]


def test_a_journey_that_is_over_leaves_the_program_alone(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    start = "import joymigrate.run.rehearse.memory.watch as w; w.start(); print('on')"
    done = subprocess.run(
        [sys.executable, "-c", start],
        env={**os.environ, "JOYMIGRATE_MEMORY": gone},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "on\n", "")


def test_an_earlier_runs_notes_are_removed(tmp_path: Path) -> None:
    old = {"pid": 1, "rank": None, "peak_bytes": {"npu:0": 1}, "timeline": [], "held": None}
    ask(tmp_path, "torch_npu", "npu")
    (tmp_path / "process-1.json").write_text(json.dumps(old), encoding="utf-8")
    assert len(collect(tmp_path, rehearsal=True)["processes"]) == 1
    ask(tmp_path, "torch_npu", "npu")
    assert collect(tmp_path, rehearsal=True)["processes"] == []


def test_tensors_are_looked_at_in_the_programs_own_thread(tmp_path: Path) -> None:
    # Another thread that reads a storage while `.npu()` moves it can crash the process.
    program = """
import threading, time, torch, torch_npu
from joymigrate.run.rehearse.memory import owners
real, threads = owners.place, set()
def place(*given):
    threads.add(threading.current_thread().name)
    return real(*given)
owners.place = place
net = torch.nn.Linear(8, 8).npu()
with torch.no_grad():
    for _ in range(20):
        net(torch.ones(2, 8, device="npu"))
        time.sleep(0.05)
print(*threads, sep=",")
"""
    (one,), said = seen(tmp_path, program)
    assert said.split() == ["MainThread"]
    assert one["timeline"]
