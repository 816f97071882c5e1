"""Bytes and loss drift of gradients exchanged in fewer bits: two processes, 200 steps.

    python benchmarks/train_communication.py [STEPS] [adamw|sgd]

Prints, per form: bytes sent against float32, the largest relative rounding seen, the largest and
the last relative difference of the losses against float32, and seconds a step. On one machine the
wire is memory, so seconds say nothing about a network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

FORMS = ("fp32:dp", "int8:dp", "bf16:dp", "int8:fsdp", "bf16:fsdp")


def main() -> None:
    from tests.run.train import jobs

    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kind = sys.argv[2] if len(sys.argv) > 2 else "adamw"
        chosen = {"name": kind, "lr": 1e-3 if kind == "adamw" else 0.05}
        quiet = {"every": 0, "export": False}
        path = jobs.write(folder, steps=steps, checkpoint=quiet, optimiser=chosen)
        environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
        program = root / "tests" / "run" / "train" / "programs" / "communication.py"
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *(str(program), str(path), name, *FORMS),
        ]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        exact = jobs.losses(folder / "fp32-dp")
        print(f"{steps} steps, loss {exact[0]:.4f} to {exact[-1]:.4f}")
        print("| form | bytes | rounding | drift, largest | drift, last | s/step |")
        print("| --- | --- | --- | --- | --- | --- |")
        for form in FORMS:
            run = folder / form.replace(":", "-")
            status = json.loads((run / "status.json").read_text())
            told = status.get("communication", {"ratio": 1.0, "largest_rounding": 0.0})
            found = jobs.losses(run)
            drifts = [abs(a - b) / a for a, b in zip(exact, found, strict=True)]
            print(
                f"| {form} | {told['ratio']:.4f} | {told['largest_rounding']:.5f} "
                f"| {max(drifts):.2e} | {drifts[-1]:.2e} | {status['seconds'] / steps:.4f} |"
            )


if __name__ == "__main__":
    main()
