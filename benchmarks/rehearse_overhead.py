"""What the rehearsal device costs: a GPT's training step on it, relative to the CPU.

    python benchmarks/rehearse_overhead.py [--rounds 3]

Process CPU time of the median step (20 steps, one thread), both sides in turn; the best ratio of
the rounds counts, since a busy machine only ever adds. Limits: 2.5 for the tiny model (2 layers,
d=64), 1.25 for the medium one (4 layers, d=256, T=128, B=8). Start-up: a program that only imports
torch, from the command line on, with the device built before; limit 5 s.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "tests" / "run" / "rehearse" / "programs" / "gpt.py"
REHEARSE = [sys.executable, "-m", "joymigrate", "rehearse", "-q", "--"]
LIMITS = {"tiny": 2.5, "medium": 1.25}
START_LIMIT_S = 5.0


def run(command: list[str]) -> str:
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def step_ms(device: str, flags: list[str]) -> tuple[float, list[float]]:
    """Median CPU time of a step after the first five, and the losses."""
    start = REHEARSE if device != "cpu" else []
    python = "python" if device != "cpu" else sys.executable
    made = json.loads(run([*start, python, str(PROGRAM), device, "20", *flags]))
    return 1e3 * statistics.median(made["seconds"][5:]), made["losses"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    failed = False
    for name, flags in (("tiny", []), ("medium", ["--big"])):
        ratios, apart = [], 0.0
        for _ in range(rounds):
            host, wanted = step_ms("cpu", flags)
            device, got = step_ms("npu", flags)
            ratios.append(device / host)
            apart = max(apart, *(abs(a - b) for a, b in zip(wanted, got, strict=True)))
            print(f"  {name}: {host:.1f} ms on the CPU, {device:.1f} ms rehearsed", flush=True)
        failed |= min(ratios) > LIMITS[name] or apart > 1e-6
        print(
            f"{name}: {min(ratios):.2f} x the CPU (limit {LIMITS[name]}); "
            f"losses of 20 steps at most {apart:.1e} apart"
        )
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        run([*REHEARSE, "python", "-c", "import torch; torch.ones(1, device='npu')"])
        seconds.append(time.perf_counter() - start)
    failed |= min(seconds) > START_LIMIT_S
    print(f"start-up: {min(seconds):.1f} s (limit {START_LIMIT_S})")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
