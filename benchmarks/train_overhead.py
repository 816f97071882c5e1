"""What the training loop costs over the same loop written by hand, and what a save blocks.

    TORCH_DEVICE_BACKEND_AUTOLOAD=0 OMP_NUM_THREADS=1 python benchmarks/train_overhead.py

Loop: the same model, batches and optimiser, in turns (ours, by hand, ours …), medians of the time
per step; every step of ours is logged and checked, no kernels are replaced. Save: the time in which
training stands still for one checkpoint, asynchronous against synchronous.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from joymigrate.chips import hide_driverless
from joymigrate.device import Device
from joymigrate.run.train import Checkpointer, assemble, job
from joymigrate.run.train.loop import Loop
from joymigrate.run.train.run_folder import RunFolder
from joymigrate.run.train.tasks.task import next_token_sum

MODEL = {
    "model_type": "qwen2",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def job_in(folder: Path, steps: int) -> job.Job:
    """A pre-training job on generated text."""
    lines = (json.dumps({"text": f"line {i} " * 40}) for i in range(400))
    (folder / "text.jsonl").write_text("\n".join(lines))
    path = folder / "job.yaml"
    document = {
        "model": {"from_config": MODEL},
        "data": {"train": "text.jsonl", "max_length": 256},
        "task": "pretrain",
        "steps": steps,
        "kernels": "off",
        "checkpoint": {"every": 0, "export": False},
        "device": "cpu",
    }
    path.write_text(json.dumps(document))
    return job.load(path)


def by_hand(parts: Any, position: int) -> float:
    """One step as a user would write it; returns its seconds of this thread's processor."""
    batch = parts.feed.make(position).passes[0]  # reading is outside of both measurements
    started = time.process_time()
    parts.optimiser.zero_grad(set_to_none=True)
    inputs = {name: batch[name] for name in ("input_ids", "position_ids")}
    logits = parts.laid.model(**inputs, use_cache=False).logits
    loss = next_token_sum(logits, batch["labels"]) / (batch["labels"] != -100).sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parts.laid.model.parameters(), 1.0)
    parts.optimiser.step()
    loss.item()
    return time.process_time() - started


def loops(folder: Path, steps: int) -> tuple[float, float]:
    """Median seconds of a step: ours, by hand."""
    made = job_in(folder, 10 * steps)
    run = RunFolder(folder / "run")
    run.begin(made, fresh=True)
    parts = assemble.assemble(made, run, Device("cpu"), lambda line: None)
    assert parts.log is not None
    parts.log.line = None
    loop = Loop(parts, lambda: False)
    ours, hand = [], []
    for number in range(steps + 3):
        ready = parts.feed.make(loop.state.position)
        parts.feed.take = lambda *_, ready=ready: ready  # type: ignore[method-assign]
        started = time.process_time()
        loop.step()
        loop.guard.on(loop.state.step, 1.0)
        ours.append(time.process_time() - started)
        hand.append(by_hand(parts, number * made.batch.size))
    parts.feed.close()
    parts.keeper.close()
    parts.log.close()
    return statistics.median(ours[3:]), statistics.median(hand[3:])


def saves(folder: Path, megabytes: int, rounds: int) -> dict[str, float]:
    """Median seconds that training stands still for one save, by kind."""
    width = 1024
    layers = max(1, megabytes * 2**20 // (width * width * 4 * 3))  # weights and two averages
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
    optimiser = torch.optim.AdamW(model.parameters())
    found = {}
    for kind in ("asynchronous", "synchronous"):
        keeper = Checkpointer(folder / kind, model, optimiser, asynchronous=kind[0] == "a", keep=1)
        blocked = []
        for number in range(rounds + 1):
            before = keeper.spent.blocked_s
            keeper.save(number)
            for _ in range(4):  # a step's passes, in which the copy is made
                model(torch.randn(256, width)).sum().backward()
            optimiser.step()
            optimiser.zero_grad()
            blocked.append(keeper.spent.blocked_s - before)
            keeper.wait()
        keeper.close()
        found[kind] = statistics.median(blocked[1:])
    return found


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30, help="0: saves only")
    parser.add_argument("--megabytes", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    hide_driverless()
    with tempfile.TemporaryDirectory() as name:
        ratio = None
        if options.steps:
            ours, hand = loops(Path(name), options.steps)
            ratio = ours / hand
            print(f"step: ours {ours * 1e3:.1f} ms, by hand {hand * 1e3:.1f} ms of processor time")
            print(f"ratio {ratio:.4f}")
        found = saves(Path(name), options.megabytes, options.rounds)
    blocked, whole = found["asynchronous"], found["synchronous"]
    print(f"save of {options.megabytes} MB: {blocked:.3f} s blocked, synchronous {whole:.3f} s")
    print(f"share {blocked / whole:.1%}")
    print(json.dumps(dataclasses.asdict(Result(ratio, blocked / whole))))


@dataclasses.dataclass
class Result:
    """What the claims are about."""

    loop_ratio: float | None
    blocked_share: float


if __name__ == "__main__":
    main()
