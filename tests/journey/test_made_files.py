"""A journey of a program that refuses to start where its output folder is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.journey.test_migrate import REPOSITORY, migrate, needs_chip

PROGRAM = """
import os
import sys
import time

import torch

runs, slow = sys.argv[1:]
with open(runs, "a") as file:
    file.write("run\\n")
os.makedirs("out")
with open("out/begun.txt", "w") as file:
    file.write("begun")
if os.path.exists(slow) and len(open(runs).readlines()) > 1:
    time.sleep(600)  # until it is killed
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).cuda()
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    loss = net(torch.randn(4, 6).cuda()).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    print(f"step {step} loss {loss.item():.6f}")
torch.save(net.state_dict(), "out/model.pt")
"""


@needs_chip
@pytest.mark.slow
def test_a_program_that_refuses_its_output_folder_goes_the_whole_way(tmp_path: Path) -> None:
    """Killed in its second run first: every file is there again, and the journey goes on."""
    project, runs, slow = tmp_path / "project", tmp_path / "runs.txt", tmp_path / "slow"
    project.mkdir()
    (project / "pyproject.toml").write_text("[tool.joymigrate]\n")
    (project / "train.py").write_text(PROGRAM)
    (project / "data.txt").write_text("the user's own")
    slow.touch()
    words = ["--entry", f"python train.py {runs} {slow}", "-q", "--format", "json"]
    command = [sys.executable, "-m", "joymigrate", "migrate", str(project), *words]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not (runs.exists() and len(runs.read_text()) > 4):
            time.sleep(0.1)
        while process.poll() is None and not (project / "out" / "begun.txt").exists():
            time.sleep(0.1)
        assert not (project / "out" / "model.pt").exists()
        process.kill()
    assert process.returncode == -signal.SIGKILL
    slow.unlink()
    status = [sys.executable, "-m", "joymigrate", "status", str(project)]
    for _ in range(100):  # until the program has ended with its journey
        subprocess.run(status, check=True, env=environment, capture_output=True)
        if (project / "out" / "model.pt").exists():
            break
        time.sleep(0.1)
    assert {path.name for path in (project / "out").iterdir()} == {"begun.txt", "model.pt"}
    assert (project / "data.txt").read_text() == "the user's own"
    done = migrate(project, *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["verdict"], found["left"]) == ("pass", ["out"])
    assert len(runs.read_text().splitlines()) > 4  # each run of the journey began as the first
    assert {path.name for path in (project / "out").iterdir()} == {"begun.txt", "model.pt"}
