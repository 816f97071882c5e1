"""Cases of what a program computes outside of its models: scripts that run by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate.verify.bundle import open_bundle
from joymigrate.verify.evidence_pack import CALLS, write_pack
from tests.verify.harness import record, replay

PROGRAM = """
import torch
from torch.nn.functional import cross_entropy
torch.manual_seed(0); torch.set_num_threads(1)
model = torch.nn.Linear(8, 70)
mean = torch.zeros(70)
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
g = torch.Generator().manual_seed(1)
for step in range(3):
    x, y = torch.randn(16, 8, generator=g), torch.randint(0, 70, (16,), generator=g)
    out = model(x)
    loss = cross_entropy(out, y)
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimiser.step()
    with torch.no_grad():
        mean.mul_(0.9).add_(model.bias, alpha=0.1)
"""
LONG = "loss = cross_entropy(out, y) + sum(w * out.square().mean() for w in (.1, .2, .3, .4))"
SCALED = """class Scaled(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) * 1.01
model = Scaled("""
CASES = {
    "loss": ("cross_entropy(out, y)", "cross_entropy(out, y, label_smoothing=0.1)"),
    "long loss": ("loss = cross_entropy(out, y)", LONG),
    "gradients": ("parameters(), 0.01)", "parameters(), 0.011)"),
    "state": ("mul_(0.9)", "mul_(0.91)"),
    "module": ("model = torch.nn.Linear(", SCALED),
    "update": ("lr=0.1)", "lr=0.1, momentum=0.5, nesterov=True)"),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    (folder / "p.py").write_text(PROGRAM)
    record(folder / "p.py", folder / "base.jmb", {})
    return folder / "base.jmb"


@pytest.mark.parametrize(
    "case", ["loss", *(pytest.param(c, marks=pytest.mark.slow) for c in list(CASES)[1:])]
)
def test_the_case_of_a_wrong_value_runs_by_itself(case: str, base: Path, tmp_path: Path) -> None:
    old, new = CASES[case]
    assert old in PROGRAM
    (tmp_path / "p.py").write_text(PROGRAM.replace(old, new))
    verdict = replay(base, tmp_path / "p.py", tmp_path / "target.jmb", {})
    first = verdict.first_divergence
    assert first is not None
    assert first.stage == {"update": "S5", "module": "S3"}.get(case, "S4R")
    rank, theirs = open_bundle(tmp_path / "target.jmb").ranks[0], open_bundle(base).ranks[0]
    write_pack(rank, verdict, tmp_path / "case", theirs)
    script = tmp_path / "case" / "reproduce.py"
    assert len(script.read_text().splitlines()) <= 30
    assert (tmp_path / "case" / CALLS).exists() == (case in ("long loss", "gradients"))
    ran = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        cwd=tmp_path.parent,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    errors = [float(line.rpartition(" ")[2]) for line in lines[case != "update" :]]
    if case == "update":
        assert errors[0] > 0.1
        assert errors[1] < 1e-6
        return
    wanted = 0.01 if case == "module" else first.value
    # Both are estimates by 64 sums, of the same tensor or of the golden alone.
    assert errors == pytest.approx([wanted] * 2, rel=0.3 if case == "module" else 0.15)
