"""Programs of torch.func and of plain tensors: compared by value, and a fault is one failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.verify.model import Outcome
from tests.verify.harness import record, replay
from tests.verify.more_faults import MORE_FAULTS
from tests.verify.whole_faults import PROGRAMS

PLAIN = {"MODE": "float32", "SEED": "0"}
# A script that updates by hand has its next loss in the step of the update that moved it.
CHOSEN = {"func: prior": ("transforms", "loss"), "einsum: late drop": ("einsum", "loss")}


@pytest.fixture(scope="module")
def baselines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("transforms")
    for program, _ in CHOSEN.values():
        record(PROGRAMS / f"whole_{program}.py", folder / f"{program}.jmb", PLAIN, runs=2)
    return folder


@pytest.mark.parametrize("name", CHOSEN)
def test_a_fault_without_modules_is_one_failure(name: str, baselines: Path, tmp_path: Path) -> None:
    (fault,) = [f for f in MORE_FAULTS if f.name == name]
    (tmp_path / "t.py").write_text(fault.source())
    program, phase = CHOSEN[name]
    found = replay(baselines / f"{program}.jmb", tmp_path / "t.py", tmp_path / "t.jmb", PLAIN)
    assert found.verdict is Outcome.FAIL
    assert found.first_divergence is not None
    assert found.first_divergence.phase == phase
    assert sum(row.status.failed for row in found.records) == 1


def test_a_program_of_torch_func_passes_against_itself(baselines: Path, tmp_path: Path) -> None:
    program = PROGRAMS / "whole_transforms.py"
    found = replay(baselines / "transforms.jmb", program, tmp_path / "t.jmb", PLAIN, noise=1.0)
    assert found.verdict is Outcome.PASS, found.first_divergence
    assert found.covered["loss"] == {"compared": 4, "of": 4}
    assert found.covered["state"]["compared"] == found.covered["state"]["of"] > 0
