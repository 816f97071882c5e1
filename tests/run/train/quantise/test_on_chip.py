"""Quantised models on the simulated NPU say what they say on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate.run.train.quantise.data import read_samples
from joymigrate.run.train.quantise.options import QuantiseOptions
from joymigrate.run.train.quantise.work import quantise
from tests.run.serve.engine.models import prompts
from tests.run.serve.engine.test_on_chip import PROGRAM, on_cpu
from tests.run.train.quantise.models import samples, tiny


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize("scheme", ["w8a8", "w4a16"])
def test_quantised_weights_on_the_npu_score_as_on_the_cpu(tmp_path: Path, scheme: str) -> None:
    tiny(tmp_path / "model", "llama", outliers=True)
    seen = read_samples(samples(tmp_path / "samples.jsonl"), tmp_path / "model")
    made = quantise(tmp_path / "model", tmp_path / "out", seen, QuantiseOptions(scheme=scheme))
    asked = prompts([3, 25])
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(PROGRAM), str(made.out), json.dumps(asked)]
    done = subprocess.run(
        [sys.executable, "-m", "joymigrate", "rehearse", "--", *command],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    # The rule of rounding is the same; sums of float32 differ, and with them a code now and then.
    _, want = on_cpu(made.out, asked, "float32")
    for ours, theirs in zip(found["float32 auto"]["logprobs"], want, strict=True):
        assert ours == pytest.approx(theirs, abs=0.05)
    assert found["bfloat16 auto"]["device"] == "npu"
