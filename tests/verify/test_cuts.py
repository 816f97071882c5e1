"""Values of modules on the baseline's inputs: how many times its own error they may be off by."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest

from joymigrate.verify.cut import Cut
from joymigrate.verify.model import RecordStatus
from joymigrate.verify.module_stage import judge_forced, most_ratio
from joymigrate.verify.tolerance import Tolerance

OWN = 1e-6  # the baseline's own error
LIMITS = Tolerance.of(None)


def table_of(count: int, own: float = OWN) -> dict[str, Any]:
    """The baseline's side of one call of `count` modules."""
    cuts = [
        Cut(f"m{n}", 0, "out", "", f"m{n}", 0, n, "float32", [8], norm=1.0, error32=own)
        for n in range(count)
    ]
    facts = {"root": "net", "path": "", "number": 0, "native": False, "draws": {}}
    return {"lessons": [{**facts, "rows": [astuple(cut) for cut in cuts]}]}


def status_of(error: float, own: float = OWN) -> RecordStatus:
    """What is found of the fifth module of ten, that is so far off."""
    rows = [
        {"path": f"m{n}", "call": 0, "kind": "out", "leaf": "", "owner": f"m{n}", "owner_call": 0,
         "order": n, "missing": False, "shape": [8], "dtype": "float32",
         "error": error if n == 5 else own}
        for n in range(10)
    ]  # fmt: skip
    facts = {"root": "net", "path": "", "number": 0, "pass": "fp32", "error": None, "step": 0}
    replay = {"lessons": [{**facts, "rows": rows, "draws": {}, "failures": {}}]}
    found = judge_forced(table_of(10, own), replay, {}, {}, LIMITS)
    others = [row.difference.status for row in found.rows if row.place != "net:m5"]
    assert set(others) == {RecordStatus.PASS}
    return found.rows[5].difference.status


def test_the_factor_is_below_three_at_ten_values_and_grows_slowly() -> None:
    factors = [most_ratio(table_of(count), LIMITS.judge) for count in (10, 1000, 100_000)]
    assert 2.5 < factors[0] < 3.0
    assert factors[0] < factors[1] < 5.0
    assert factors[1] < factors[2] < 7.0


@pytest.mark.parametrize(
    ("times", "status"),
    [(0.3, RecordStatus.PASS), (2.5, RecordStatus.PASS), (4.0, RecordStatus.FAIL)],
)
def test_a_value_passes_or_fails(times: float, status: RecordStatus) -> None:
    assert status_of(times * OWN) is status


def test_what_the_baseline_itself_makes_anew_is_not_compared() -> None:
    assert status_of(0.9, own=0.1) is RecordStatus.UNCOMPARED
    assert status_of(11.0, own=0.1) is RecordStatus.FAIL
