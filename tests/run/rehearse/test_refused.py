"""Calls that chips refuse, and calls that they take: written before the tables were looked at."""

from __future__ import annotations

import pytest

from tests.run.rehearse.conftest import PROGRAMS, Run

pytestmark = [pytest.mark.compiler, pytest.mark.slow]


@pytest.mark.parametrize(
    ("model", "soc", "bad", "good"),
    [("910B", "910B3", 16, 19), ("310P", "310P3", 1, 1), ("910A", "910A", 2, 0)],
)
def test_what_chips_refuse_is_refused_and_nothing_else(
    rehearse: Run, model: str, soc: str, bad: int, good: int
) -> None:
    program = str(PROGRAMS / "refused.py")
    done = rehearse("python", program, model, options=("--strict", "--soc", soc))
    lines = [line for line in done.out.splitlines() if line.startswith(("BAD", "GOOD"))]
    assert [line for line in lines if line.startswith("BAD") and "STOPPED" not in line] == []
    assert [line for line in lines if line.startswith("GOOD") and "PASSED" not in line] == []
    assert sum(line.startswith("BAD") for line in lines) == bad
    assert sum(line.startswith("GOOD") for line in lines) == good
