"""Programs that draw random numbers are judged by their arithmetic, not by their luck."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compiler,
    pytest.mark.skipif(
        PathFinder.find_spec("torch_npu") is None, reason="torch_npu is not installed"
    ),
]

NOISE = """
import time
import torch
{seed}
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torch.nn.Linear(8, 8).to(device)
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = {data}.to(device)
    loss = (model(x + torch.randn_like(x)) - x).square().mean()
    optimiser.zero_grad(); loss.backward(); optimiser.step()
    print(f"step {{step}} loss {{loss.item():.5f}}")
"""


@pytest.mark.parametrize(
    ("seed", "data", "verdict", "said"),
    [
        ("", "torch.randn(16, 8)", "pass", "4 losses against 4"),
        (
            "torch.manual_seed(time.time_ns() % 2**31)",
            "torch.randn(16, 8)",
            "inconclusive",  # its weights are others at every run
            "set a seed",
        ),
    ],
)
def test_noise_on_the_device_is_no_fault_of_the_chip(
    seed: str, data: str, verdict: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(NOISE.format(seed=seed, data=data))
    (tmp_path / "pyproject.toml").write_text("[tool.joymigrate]\n")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "joymigrate", "migrate", str(tmp_path), "-q"),
            *("--entry", "python train.py", "--format", "json"),
        ],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    found = {one["name"]: one for one in json.loads(done.stdout)["journey"]}
    assert found["verify"]["verdict"] == verdict, found["verify"]
    assert found["train"]["verdict"] == verdict, found["train"]
    assert said in found["train"]["summary"]
