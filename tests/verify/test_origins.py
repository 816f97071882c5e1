"""Models that are loaded after training: their weights drift as training does, and may be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from joymigrate.verify import identity
from joymigrate.verify.model import Outcome, RecordStatus
from tests.verify.harness import record, replay
from tests.verify.more_faults import MORE_FAULTS
from tests.verify.whole_faults import PROGRAMS

PLAIN = {"MODE": "float32", "SEED": "0"}
FAULTS = {f.name: f for f in MORE_FAULTS if f.program == "checkpoint"}


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bundle = tmp_path_factory.mktemp("origins") / "base.jmb"
    record(PROGRAMS / "whole_checkpoint.py", bundle, PLAIN)
    return bundle


@pytest.mark.slow
def test_loaded_weights_that_drift_pass(baseline: Path, tmp_path: Path) -> None:
    program = PROGRAMS / "whole_checkpoint.py"
    found = replay(baseline, program, tmp_path / "target.jmb", PLAIN, noise=1.0)
    assert found.verdict is Outcome.PASS, found.first_divergence
    drifted = [r for r in found.records if r.stage == "S1" and r.status is RecordStatus.PASS]
    assert len({row.module.partition(".")[0] for row in drifted}) == 4


@pytest.mark.parametrize(
    "name",
    [
        "loaded: earlier checkpoint",
        "loaded: decay of the average",
        "loaded: earlier checkpoint into the same model",
    ],
)
def test_another_origin_is_one_failure(name: str, baseline: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FAULTS[name].source())
    target = tmp_path / "target.jmb"
    found = replay(baseline, tmp_path / "train.py", target, PLAIN, noise=1.0)
    assert found.verdict is Outcome.FAIL
    assert found.first_divergence is not None
    assert (found.first_divergence.stage, found.first_divergence.phase) == ("S1", None)
    assert sum(row.status.failed for row in found.records) == 1


def side(**fact: Any) -> dict[str, Any]:
    made = {"source": "net:w", "same": False, "steps": [], "watched": True, "apart": 0.5, "norm": 1}
    weight = {"sha256": str(fact), "dtype": "float32", "shape": [2], "kind": "parameter"}
    origins = {"copy:w": {**made, **fact}}
    return {"roots": [], "modules": {}, "weights": {"copy:w": weight}, "origins": origins}


@pytest.mark.parametrize(
    ("mine", "other", "measured", "status"),
    [
        ({"same": True}, {"same": True, "norm": 2}, {}, RecordStatus.PASS),
        ({"same": True}, {}, {}, RecordStatus.FAIL),
        ({}, {"same": True}, {}, RecordStatus.FAIL),
        ({"steps": [3]}, {"steps": [3], "norm": 2}, {}, RecordStatus.PASS),
        ({"steps": [3]}, {"steps": [4]}, {}, RecordStatus.FAIL),
        ({"steps": [3]}, {}, {}, RecordStatus.FAIL),
        ({}, {"apart": 0.6}, {"apart": 0.02, "drift": 0.01}, RecordStatus.PASS),
        ({}, {"apart": 0.9}, {"apart": 0.02, "drift": 0.01}, RecordStatus.FAIL),  # lies elsewhere
        (
            {},
            {"apart": 0.6},
            {"apart": 0.04, "drift": 0.01},
            RecordStatus.FAIL,
        ),  # farther than drift
        (
            {},
            {"apart": 9.0},
            {"apart": 9.0, "drift": 5.0},
            RecordStatus.UNCOMPARED,
        ),  # nothing is known
        ({}, {"apart": 0.6}, {}, RecordStatus.FAIL),  # the bytes differ, and nothing was measured
    ],
)
def test_a_copy_is_to_its_model_what_the_baselines_is(
    mine: dict[str, Any], other: dict[str, Any], measured: dict[str, Any], status: RecordStatus
) -> None:
    facts = {"copy:w": {"cast": False, "error": 0.1, **measured}} if measured else {}
    (row,) = identity.weights(side(**mine), side(**other), {}, facts)
    assert row.status is status


WRAPPED = """\
import copy, os, torch
class Wrap(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, x):
        return self.inner(x) * 2
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(16, 4)
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        wrapped = Wrap(net)
        print(float(wrapped(x).mean()))
"""


def test_a_model_that_is_wrapped_after_training_keeps_its_tensors(tmp_path: Path) -> None:
    program, base = tmp_path / "train.py", tmp_path / "base.jmb"
    program.write_text(WRAPPED)
    record(program, base, PLAIN)
    found = replay(base, program, tmp_path / "target.jmb", PLAIN, noise=1.0)
    assert found.verdict is Outcome.PASS, found.first_divergence
    program.write_text(WRAPPED.replace("Wrap(net)", "Wrap(copy.deepcopy(net))"))
    found = replay(base, program, tmp_path / "copied.jmb", PLAIN, noise=1.0)
    assert found.verdict is Outcome.FAIL
    assert "a copy" in str([r.reason for r in found.records if r.stage == "S1"])
