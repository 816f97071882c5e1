"""Faults by kind, planted in programs of their own, and clean runs: places, causes, no alarm.

The catalogue was written before the code that judges it was read (`kinds/catalogue.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.verify.kinds.catalogue import CLEAN, FAULTS
from tests.verify.kinds.score import grade, judge, told

QUICK = ("elu", "lerp", "rate", "clip", "count")  # one of each kind; the others are slow
# Faults whose place is right and whose cause no diff and no experiment tells.
NO_CAUSE = ("elu-back", "left", "cold", "betas", "shift")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return tmp_path_factory.mktemp("kinds")  # type: ignore[return-value]


def cases() -> Iterator[object]:
    for kind, program, fault, place, cause in FAULTS:
        marks = [pytest.mark.dear] if fault in QUICK else [pytest.mark.slow]
        yield pytest.param(program, fault, place, cause, id=f"{kind} {fault}", marks=marks)


@pytest.mark.parametrize(("program", "fault", "place", "cause"), list(cases()))
def test_a_fault_is_placed(
    program: str, fault: str, place: str, cause: str | None, folder: Path
) -> None:
    verdict = judge(program, fault, folder)
    if fault == "autocast":  # 16 bits on one side pass by the rounding of 16 bits, and it is said
        assert any(item["what"] == "digits" for item in verdict.uncovered)
        return
    found, why = grade(verdict, place, cause)
    assert found == "right", told(verdict)
    assert why != "wrong", told(verdict)
    if cause is not None and fault not in NO_CAUSE:
        assert why == "right", told(verdict)
        assert verdict.first_divergence.line is not None


@pytest.mark.slow
@pytest.mark.parametrize(("program", "fault"), CLEAN)
def test_a_clean_run_raises_no_alarm(program: str, fault: str, folder: Path) -> None:
    verdict = judge(program, fault, folder)
    assert verdict.verdict.value == "pass", told(verdict)
