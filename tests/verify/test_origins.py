"""Models that are loaded after training: their weights drift as training does, and may be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from joymigrate.verify import identity, repeat_runs
from joymigrate.verify.model import Outcome, RecordStatus
from tests.verify.harness import record, replay
from tests.verify.more_faults import MORE_FAULTS
from tests.verify.whole_faults import PROGRAMS

PLAIN = {"MODE": "float32", "SEED": "0"}
FAULTS = {f.name: f for f in MORE_FAULTS if f.program == "checkpoint"}


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bundle = tmp_path_factory.mktemp("origins") / "base.jmb"
    record(PROGRAMS / "whole_checkpoint.py", bundle, PLAIN, runs=2)
    return bundle


@pytest.mark.slow
def test_loaded_weights_that_drift_pass(baseline: Path, tmp_path: Path) -> None:
    program = PROGRAMS / "whole_checkpoint.py"
    found = replay(baseline, program, tmp_path / "target.jmb", PLAIN, noise=1.0)
    assert found.verdict is Outcome.PASS, found.first_divergence
    drifted = [r for r in found.records if r.reason == identity.MADE]
    assert len({row.module.partition(".")[0] for row in drifted}) == 3
    held = [r for r in found.records if str(r.op).endswith("at a call in a new way")]
    assert {row.module.partition(".")[0] for row in held} >= {
        row.module.partition(".")[0] for row in drifted
    }


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
    place = ("S1", None) if "the same model" in name else ("S5W", "state")
    assert (found.first_divergence.stage, found.first_divergence.phase) == place
    assert sum(row.status.failed for row in found.records) == 1


def test_weights_that_training_made_are_told_by_the_baselines_other_runs(tmp_path: Path) -> None:
    def side(sha256: str) -> dict[str, Any]:
        weight = {"sha256": sha256, "dtype": "float32", "shape": [2], "kind": "parameter"}
        return {"roots": [], "modules": {}, "weights": {"copy:w": weight}}

    (row,) = identity.weights(side("a"), side("b"), {}, {})
    assert row.status is RecordStatus.FAIL
    (row,) = identity.weights(side("a"), side("b"), {}, {}, lambda name: name == "copy:w")
    assert row.status is RecordStatus.UNCOMPARED
    (row,) = identity.weights(side("a"), side("a"), {}, {}, lambda name: name == "copy:w")
    assert row.status is RecordStatus.IDENTICAL


def test_a_weight_that_came_to_the_same_by_chance_is_trained_as_its_module_is() -> None:
    class Recorded:
        def json(self, name: str) -> dict[str, Any]:
            held = {f"held copy:{leaf}": [] for leaf in ("a.weight", "a.bias", "b.weight")}
            return {
                "watch.json": {"series": held},
                "again.json": {"runs": [{}]},
                "repeats.json": {"weights": ["copy:a.weight"]},
            }[name]

    trained = repeat_runs.find_trained(Recorded())  # type: ignore[arg-type]
    assert [trained(f"copy:{leaf}") for leaf in ("a.weight", "a.bias", "b.weight")] == [
        True,
        True,
        False,
    ]


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
    record(program, base, PLAIN, runs=2)
    found = replay(base, program, tmp_path / "target.jmb", PLAIN, noise=1.0)
    assert found.verdict is Outcome.PASS, found.first_divergence
    program.write_text(WRAPPED.replace("Wrap(net)", "Wrap(copy.deepcopy(net))"))
    found = replay(base, program, tmp_path / "copied.jmb", PLAIN, noise=1.0)
    assert found.verdict is Outcome.FAIL
    assert "a copy" in str([r.reason for r in found.records if r.stage == "S1"])
