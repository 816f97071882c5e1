"""Programs whose results come back as data: rounding grows there, and a fault still stands out."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.verify.model import Outcome
from tests.verify.harness import record, replay
from tests.verify.whole_faults import PROGRAMS

PROGRAM = PROGRAMS / "whole_control.py"
FAULTS = {
    "reward": ("float(-np.abs(moved).sum())", "float(-np.abs(moved).sum()) * 1.05"),
    "discount": ("0.99 * target", "0.95 * target"),
    "target": ("mul_(0.995)", "mul_(0.99)"),
    "printed": ("row[2] for row in memory[-24:]", "2 * row[2] for row in memory[-24:]"),
    "action": ("0.1, 0.2, 0.3", "0.1, 0.2, 0.31"),
}


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bundle = tmp_path_factory.mktemp("control") / "b.jmb"
    record(PROGRAM, bundle, runs=2)
    return bundle


def test_rounding_that_comes_back_as_data_is_no_fault(baseline: Path, tmp_path: Path) -> None:
    found = replay(baseline, PROGRAM, tmp_path / "t.jmb", noise=2.0)  # the baseline's runs had 1
    assert found.verdict is Outcome.PASS, found.first_divergence
    reasons = [str(item["reason"]) for item in found.uncovered]
    assert any("read from its models' results" in reason for reason in reasons)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_such_a_program_is_found(name: str, baseline: Path, tmp_path: Path) -> None:
    before, after = FAULTS[name]
    source = PROGRAM.read_text()
    assert source.count(before) == 1
    (tmp_path / "t.py").write_text(source.replace(before, after))
    found = replay(baseline, tmp_path / "t.py", tmp_path / "t.jmb", noise=1.0)
    assert found.verdict is Outcome.FAIL
