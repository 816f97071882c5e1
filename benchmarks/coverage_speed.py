"""Parse and cover a 188 MB Chrome trace: CPU time and peak memory, beside `json.load`.

    python benchmarks/coverage_speed.py [--megabytes 188] [--rounds 3] [--trace FILE]

The trace is made: a training step of a transformer (operators with shapes and dtypes, autograd's
nodes, runtime calls, kernels, arrows), repeated. Each figure is of a process of its own, best of
the rounds. Exits 1 above 0.45 of the CPU time of `json.load`, or 150 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LIMIT, LIMIT_MB = 0.45, 150
SHAPES = {
    "aten::linear": [[8, 1024, 4096], [4096, 4096], []],
    "aten::addmm": [[4096], [8192, 4096], [4096, 4096], [], []],
    "aten::mm": [[8192, 4096], [4096, 4096]],
    "aten::mul": [[8, 1024, 4096], [8, 1024, 4096]],
    "aten::add": [[8, 1024, 4096], [8, 1024, 4096], []],
    "aten::layer_norm": [[8, 1024, 4096], [], [4096], [4096], []],
    "aten::gelu": [[8, 1024, 16384], []],
}
KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"


def events() -> Iterator[dict[str, Any]]:
    """A trace without end: forward and backward of one layer after the other."""
    now, number = 5_000_000_000.125, 0
    while True:
        for backward in (False, True):
            for name, dims in SHAPES.items():
                number += 3
                thread = 2 if backward else 1
                args: dict[str, Any] = {
                    "External id": number,
                    "Record function id": 0,
                    "Concrete Inputs": [""] * len(dims),
                    "Input type": ["float" if d else "Scalar" for d in dims],
                    "Input Strides": [[d[-1], 1] if d else [] for d in dims],
                    "Input Dims": dims,
                    "Ev Idx": number,
                }
                base = {"ph": "X", "pid": 4242, "tid": thread}
                if backward:
                    node = f"autograd::engine::evaluate_function: {name[6:].title()}Backward0"
                    yield {**base, "cat": "cpu_op", "name": node, "ts": now, "dur": 90.5,
                           "args": {**args, "External id": number - 1}}  # fmt: skip
                yield {**base, "cat": "cpu_op", "name": name, "ts": now + 2, "dur": 60.25,
                       "args": args}  # fmt: skip
                yield {**base, "cat": "cpu_op", "name": "aten::empty", "ts": now + 4, "dur": 3.5,
                       "args": {**args, "External id": number + 1}}  # fmt: skip
                yield {**base, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": now + 20,
                       "dur": 6.125, "args": {"External id": number, "cbid": 211,
                       "correlation": number}}  # fmt: skip
                yield {"ph": "X", "cat": "kernel", "name": KERNEL, "pid": 0, "tid": 7,
                       "ts": now + 70, "dur": 41.5, "args": {"External id": number,
                       "queued": 0, "device": 0, "context": 1, "stream": 7,
                       "correlation": number, "registers per thread": 32, "shared memory": 0,
                       "grid": [8192, 1, 1], "block": [128, 1, 1]}}  # fmt: skip
                yield {"ph": "s", "id": number, "pid": 4242, "tid": thread, "ts": now + 20,
                       "cat": "ac2g", "name": "ac2g"}  # fmt: skip
                yield {"ph": "f", "id": number, "pid": 0, "tid": 7, "ts": now + 70,
                       "cat": "ac2g", "name": "ac2g", "bp": "e"}  # fmt: skip
                now += 100.5


def make(path: Path, size: int) -> int:
    """Write a trace of this many bytes; the number of events."""
    written = count = 0
    with path.open("w", encoding="utf-8") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [\n')
        for event in events():
            text = ("" if not count else ",\n") + json.dumps(event)
            file.write(text)
            written += len(text)
            count += 1
            if written >= size:
                break
        file.write("\n]}\n")
    return count


def measure(command: list[str]) -> tuple[float, float]:
    """CPU seconds and peak MB of a process."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"failed: {' '.join(command)}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> int:
    """Measure and print a table; 1 when a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=int, default=188)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trace", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.trace or Path(folder) / "trace.json"
        if arguments.trace is None:
            count = make(path, arguments.megabytes * 1_000_000)
            print(f"{path.stat().st_size / 1e6:.0f} MB, {count} events")
        here = [sys.executable, "-m", "joymigrate"]
        load = "import json, sys; json.load(open(sys.argv[1], encoding='utf-8'))"
        ways = {
            "joymigrate profile coverage": [*here, "profile", "coverage", str(path), "-q"],
            "json.load (parse only)": [sys.executable, "-c", load, str(path)],
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(arguments.rounds):
            for name, command in ways.items():
                found[name].append(measure(command))
    print("| way | CPU s | peak MB |\n|---|---|---|")
    best = {
        name: (min(c for c, _ in rows), max(m for _, m in rows)) for name, rows in found.items()
    }
    for name, (seconds, megabytes) in best.items():
        print(f"| {name} | {seconds:.2f} | {megabytes:.0f} |")
    seconds, megabytes = best["joymigrate profile coverage"]
    share = seconds / best["json.load (parse only)"][0]
    print(f"\n{share:.2f} of the CPU time of json.load")
    return int(share > LIMIT or megabytes > LIMIT_MB)


if __name__ == "__main__":
    sys.exit(main())
