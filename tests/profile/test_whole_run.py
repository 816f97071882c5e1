"""What a program calls beside and after the recorded steps is in the recording as well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate.profile import readers
from joymigrate.profile.coverage import cover
from joymigrate.profile.oplist import of

LATE = Path(__file__).parent / "programs" / "late.py"
PLANTED = {
    "aten::lgamma": "forward",
    "aten::digamma": "backward",
    "aten::linalg_eig": "eval",
    "aten::poisson": "forward",
    "aten::special_bessel_j0": "worker",
    "aten::special_bessel_y1": "forward",
    "aten::special_zeta": "backward",
    "c10d::allreduce_bxor": "forward",
    "aten::igammac": "export",
    "aten::igamma": "export",
}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("late") / "run.jsonl"
    command = [sys.executable, "-m", "joymigrate", "profile", "record", "-q", "-o", str(out)]
    done = subprocess.run(
        [*command, "--", sys.executable, str(LATE)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"
    return out


def test_operators_that_come_late_are_found_with_their_phase(recording: Path) -> None:
    coverage = cover([readers.read(recording)], of("ascend", "2.13"))
    gaps = {op.op: op for op in coverage.gaps()}
    assert set(gaps) == set(PLANTED)
    for name, phase in PLANTED.items():
        assert phase in gaps[name].phases, name
    assert "late.py:" in (gaps["aten::linalg_eig"].where or "")


def test_phases_say_how_they_were_seen(recording: Path) -> None:
    phases = cover([readers.read(recording)], of("ascend", "2.13")).phases
    assert phases["optimiser"].seen == "exactly"
    assert phases["worker"].seen == "by name"
    assert phases["export"].seen == "by name"
    assert phases["eval"].exact  # the first call in a new mode is recorded whole
    assert phases["eval"].gaps == 1


@pytest.mark.slow
def test_a_gate_asks_for_phases_and_for_attribution(recording: Path) -> None:
    command = [sys.executable, "-m", "joymigrate", "profile", "coverage", "-q", str(recording)]

    def code(*options: str) -> int:
        return subprocess.run([*command, *options], capture_output=True).returncode

    assert code("--require-phase", "eval", "--max-unattributed", "0") == 0
    assert code("--require-phase", "worker=exact") == 1
    assert code("--require-phase", "evaluation") == 2
