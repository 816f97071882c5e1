"""What recording costs: a 4-layer Llama-like model (d=256, T=128, B=4), CPU time per step.

    python benchmarks/verify_overhead.py [--all] [--msprobe PYTHON] [--repeat N] [--records N]

Each line is a ratio to the plain step, by the minimum of several interleaved runs, and is printed
as soon as it is known. "watch" is a step after the recorded ones; "modules, loss and state" is a
recorded one that keeps tensors and teaches no module. With --all also statistics alone, operators,
and "whole run", the mean of 40 steps by the default command: the first three recorded and exact, 4,
8, 16 and 32 exact, the modules taught in the first. With --msprobe the interpreter of an
environment that has `mindstudio-probe` measures the same program beside it. --records compares two
recordings of so many records, in CPU seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
STEPS = 6  # of which the first is not counted
WATCH, WHOLE = "watch after the recorded steps", "modules, loss and state"
RUN, PLAIN_RUN, RUN_STEPS = "whole run of 40 steps", "plain run of 40 steps", 40
LIMITS = {
    WATCH: 1.03,
    WHOLE: 1.25,
    "modules": 1.25,
    "modules, inputs, parameters, gradients": 1.35,
    "operators": 1.7,
}
SHORT = (WATCH, WHOLE, "modules")  # what is measured by default


def build():  # type: ignore[no-untyped-def]
    import math

    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    d, heads, ffn, vocab = 256, 4, 688, 2048

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(d))

        def forward(self, x):  # type: ignore[no-untyped-def]
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight

    class Core(nn.Module):
        def forward(self, q, k, v):  # type: ignore[no-untyped-def]
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                setattr(self, name, nn.Linear(d, d, bias=False))
            self.core = Core()

        def forward(self, x):  # type: ignore[no-untyped-def]
            b, t, _ = x.shape
            parts = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
            q, k, v = (p.view(b, t, heads, -1).transpose(1, 2) for p in parts)
            return self.o_proj(self.core(q, k, v).transpose(1, 2).reshape(b, t, d))

    class MLP(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_proj, self.up_proj = (nn.Linear(d, ffn, bias=False) for _ in range(2))
            self.down_proj, self.act = nn.Linear(ffn, d, bias=False), nn.SiLU()

        def forward(self, x):  # type: ignore[no-untyped-def]
            return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.attn, self.norm2, self.mlp = Norm(), Attention(), Norm(), MLP()

        def forward(self, x):  # type: ignore[no-untyped-def]
            x = x + self.attn(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocab, d)
            self.layers = nn.ModuleList(Block() for _ in range(4))
            self.norm, self.head = Norm(), nn.Linear(d, vocab, bias=False)

        def forward(self, ids):  # type: ignore[no-untyped-def]
            x = self.embed(ids)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    model = Model()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), vocab


def steps(around=None, count: int = STEPS) -> list[float]:  # type: ignore[no-untyped-def]
    """CPU seconds of each step; `around` is called before the first and after every step."""
    import torch
    from torch.nn.functional import cross_entropy

    model, optimiser, vocab = build()
    generator = torch.Generator().manual_seed(1)
    taken = []
    for number in range(count):
        ids = torch.randint(0, vocab, (4, 129), generator=generator)
        start = time.process_time()
        if around is not None:
            around(model, number, "before")
        loss = cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if around is not None:
            around(model, number, "after")
        taken.append(time.process_time() - start)
    return taken if count != STEPS else taken[1:]


def measured(mode: str) -> float:
    """Seconds per step of one run in this process."""
    with tempfile.TemporaryDirectory() as folder:
        finish = None
        if mode.startswith("msprobe"):
            return min(steps(msprobe(mode.split()[1], folder)))
        if mode == PLAIN_RUN:
            return sum(steps(count=RUN_STEPS)) / RUN_STEPS
        if mode != "plain":
            from joymigrate.verify.bundle.write import create
            from joymigrate.verify.settings import RecordingSettings
            from joymigrate.verify.watch import install

            settings = RecordingSettings(
                bundle=f"{folder}/b.jmb",
                last={WATCH: 0, RUN: 2}.get(mode, STEPS + 1),
                stats_only=mode not in ("kept tensors", WATCH, WHOLE, RUN),
                level="ops" if mode == "operators" else "modules",
                inputs=mode not in ("modules", "operators", WATCH, WHOLE),
            )
            create(settings.path, {})
            finish = install(settings)
        taken = steps(count=RUN_STEPS if mode == RUN else STEPS)
        if finish is not None:
            finish()
        return sum(taken) / len(taken) if mode == RUN else min(taken)


def compared(records: int) -> None:
    """Print how long two recordings of at least so many records take to compare."""
    import torch
    from torch import nn

    from joymigrate.verify.bundle import open_bundle
    from joymigrate.verify.bundle.write import complete, create
    from joymigrate.verify.compare import compare
    from joymigrate.verify.settings import RecordingSettings
    from joymigrate.verify.tolerance import Tolerance
    from joymigrate.verify.watch import install

    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(1000)))
    optimiser = torch.optim.Adam(model.parameters())
    kinds = (
        10  # of one module's records in a step: in, out, their gradients, weights and Adam's state
    )
    steps = -(-records // (1000 * kinds))
    with tempfile.TemporaryDirectory() as folder:
        settings = RecordingSettings(bundle=f"{folder}/a.jmb", last=steps, stats_only=True)
        create(settings.path, {})
        finish = install(settings)
        for _ in range(steps):
            model(torch.randn(2, 4)).square().sum().backward()
            optimiser.step()
        finish()
        complete(settings.path, {}, None)
        shutil.copytree(f"{folder}/a.jmb", f"{folder}/b.jmb")
        begin = time.process_time()
        one, two = (open_bundle(Path(folder, name)) for name in ("a.jmb", "b.jmb"))
        found = compare(one, two, Tolerance.of(None))
        taken = time.process_time() - begin
    number = found.coverage.recorded
    print(
        f"compare of {number:,} records: {taken:.1f} s of CPU ({found.verdict.value}), limit 10 s"
    )


def msprobe(level: str, folder: str):  # type: ignore[no-untyped-def]
    """The incumbent's debugger at a level (L0: modules, L1: operators), statistics only."""
    from msprobe.pytorch import PrecisionDebugger

    config = Path(folder) / "config.json"
    settings = {"task": "statistics", "dump_path": folder, "level": level, "rank": [], "step": []}
    settings["statistics"] = {"scope": [], "list": [], "data_mode": ["all"]}
    config.write_text(json.dumps(settings))
    debugger = PrecisionDebugger(config_path=str(config))

    def around(model, number, when):  # type: ignore[no-untyped-def]
        if when == "before":
            debugger.start(model)
        else:
            debugger.stop()
            debugger.step()

    return around


def run(mode: str, python: str | None) -> float | None:
    """One run in a process of its own: a child that has torch already, or another `python`."""
    if python is None:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            return pool.apply(measured, (mode,))
    made = subprocess.run(
        [python, __file__, "--run", mode], capture_output=True, text=True, check=False
    )
    with contextlib.suppress(IndexError, ValueError):
        return float(made.stdout.strip().splitlines()[-1])
    print(f"{mode}: no figure: {made.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    return None


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--run")
    options.add_argument("--all", action="store_true")
    options.add_argument("--msprobe", metavar="PYTHON")
    options.add_argument("--repeat", type=int, default=1)
    options.add_argument("--records", type=int)
    chosen = options.parse_args()
    if chosen.records:
        compared(chosen.records)
        return
    if chosen.run:
        print(measured(chosen.run))
        return
    import torch  # noqa: F401  once, for all children

    import joymigrate.verify.watch  # noqa: F401

    modes: dict[str, str | None] = dict.fromkeys(("plain", *SHORT))
    modes |= dict.fromkeys((*LIMITS, PLAIN_RUN, RUN)) if chosen.all else {}
    if chosen.msprobe:
        modes |= {f"msprobe {level}": chosen.msprobe for level in ("L0", "L1", "mix")}
    best: dict[str, float] = {}
    for _ in range(chosen.repeat):
        for mode, python in modes.items():
            seconds = run(mode, python)
            if seconds is None:
                continue
            best[mode] = min(best.get(mode, seconds), seconds)
            limit = f", limit {LIMITS[mode]}" if mode in LIMITS else ""
            ratio = best[mode] / best[PLAIN_RUN if mode == RUN else "plain"]
            print(f"{mode:<40} {best[mode] * 1e3:7.1f} ms {ratio:6.2f} x{limit}", flush=True)


if __name__ == "__main__":
    main()
