"""How many of the operators that the rehearsed chip sees does a recording on the CPU predict?

Records each model of tests/profile/programs/models.py twice: on the CPU, and with `--capture
rehearse`. Needs torch_npu and a C compiler.

    python benchmarks/predicted_operators.py [gpt cnn dlrm qwen2 unet]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

from joymigrate import chips
from joymigrate.profile import capture

PROGRAM = Path(__file__).parent.parent / "tests" / "profile" / "programs" / "models.py"
MODELS = ("gpt", "cnn", "dlrm", "qwen2", "unet")


def record(model: str, out: Path, device: str, *options: str) -> capture.Capture:
    """One recording of a model's steps."""
    command = [sys.executable, "-m", "joymigrate", "profile", "record", "-q", "-o", str(out)]
    subprocess.run(
        [*command, *options, "--", "python", str(PROGRAM), model],
        env={**os.environ, "DEVICE": device},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return capture.load(out)


def main(models: list[str]) -> int:
    """Print a table; 1 when a model is below 98 %."""
    chip = chips.target("ascend")
    low = False
    print(
        "| model | chip sees | CPU recording | predicted | not predicted | predicted, not seen |\n"
        "|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            cpu = record(model, Path(folder) / f"{model}.cpu.jsonl", "cpu")
            npu = record(
                model, Path(folder) / f"{model}.npu.jsonl", chip.device, "--capture", "rehearse"
            )
            wanted = capture.list_seen(npu)
            predicted = capture.predict(cpu, chip)
            missed = sorted(wanted - predicted)
            share = 100 * (1 - len(missed) / len(wanted))
            low |= share < 98
            print(
                f"| {model} | {len(wanted)} | {len(capture.list_seen(cpu))} | {share:.1f} % "
                f"| {', '.join(missed) or '-'} | {len(predicted - wanted)} |"
            )
    return int(low)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(MODELS)))
