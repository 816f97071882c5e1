"""The verdict on one result of an operator, by its numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from joymigrate.verify.model import RecordStatus
from joymigrate.verify.ops.judge import by_single, cause, errors, identical, judge
from joymigrate.verify.tolerance import OperatorLimit

LIMIT = OperatorLimit(
    "aten::mm", "float32", "L1", False, {"max": 5.0, "mean": 1.5, "rmse": 1.5}, 2.0**-24,
    "allclose", {"rtol": 1e-3, "atol": 1e-5}, 2.0**-14, 3.0, 2.0**-24, "", "",
)  # fmt: skip
INF, NAN = math.inf, math.nan


def judged(target: Any, reference: Any, golden: Any, limit: OperatorLimit = LIMIT) -> RecordStatus:
    made = [torch.tensor(x) for x in (target, reference)]
    return judge(made[0], made[1], torch.tensor(golden, dtype=torch.float64), limit).status


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ([1.0, NAN], [1.0, NAN], True),
        ([INF], [INF], True),
        ([INF], [8.0], False),  # no number stands for infinity
        ([-INF], [9.0], False),
        ([INF], [-INF], False),
        ([NAN], [7.0], False),
        ([0.0], [-0.0], True),
    ],
)
def test_identical_values(a: list[float], b: list[float], same: bool) -> None:
    assert identical(torch.tensor(a), torch.tensor(b)) is same


def test_whole_numbers_are_equal_or_wrong() -> None:
    golden = torch.tensor([1, 2, 3])
    assert judge(golden.clone(), golden, golden, LIMIT).status is RecordStatus.IDENTICAL
    found = judge(torch.tensor([1, 2, 4]), golden, golden, LIMIT)
    assert (found.status, found.value) == (RecordStatus.FAIL, pytest.approx(1 / 3))


def test_a_type_that_the_device_does_not_keep_is_told_and_held_against_its_digits() -> None:
    wide = torch.tensor([1.0, 1 / 3], dtype=torch.float64)
    limit = replace(LIMIT, exact=True, narrowed={"float64": "float32"}, narrowed_source="it says")
    found = judge(wide.float(), wide, wide, limit)
    assert found.status is RecordStatus.WARN
    assert "float64 becomes float32 on the device" in str(found.reason)
    assert judge(wide.float(), wide, wide, LIMIT).metric == "dtype"
    for wrong in (wide.float() * 1.01, wide.half()):
        assert judge(wrong, wide, wide, limit).status is RecordStatus.FAIL


@pytest.mark.parametrize(
    ("target", "reference", "golden", "status"),
    [
        ([1.0, NAN], [1.0, 2.0], [1.0, 2.0], RecordStatus.NAN_MISMATCH),
        ([1.0, INF], [1.0, -INF], [1.0, -INF], RecordStatus.NAN_MISMATCH),
        ([1.0, INF], [1.0, NAN], [1.0, 2.0], RecordStatus.PASS),  # the reference strays itself
        ([1.0, INF], [1.0, 2.0], [1.0, INF], RecordStatus.PASS),  # the target is right
        ([NAN], [INF], [1.0], RecordStatus.PASS),  # nothing is left to compare
        ([1.0, 1e-40], [1.0, 0.0], [1.0, 1e-40], RecordStatus.PASS),
    ],
)
def test_values_that_are_not_finite(
    target: Any, reference: Any, golden: Any, status: RecordStatus
) -> None:
    assert judged(target, reference, golden) is status


def test_subnormal_results_may_be_zero_and_the_smallest_normal_one_may_not() -> None:
    tiny = torch.finfo(torch.float32).tiny
    exact = replace(LIMIT, exact=True)
    assert judged([1.0, 0.0], [1.0, tiny / 4], [1.0, tiny / 4]) is RecordStatus.PASS
    assert judged([1.0, 0.0], [1.0, 1e-3], [1.0, 1e-3], exact) is RecordStatus.FAIL


def single(method: str, allowed: dict[str, float], target: list[float], golden: list[float]) -> Any:
    t, g = torch.tensor(target, dtype=torch.float64), torch.tensor(golden, dtype=torch.float64)
    return by_single(t, g, errors(t, g), replace(LIMIT, method=method, single=allowed))


def test_allclose_takes_its_bound_and_nothing_beyond() -> None:
    assert single("allclose", {"rtol": 0.0, "atol": 0.25}, [1.25, 2.0], [1.0, 2.0])[0]
    passed, _, share, _ = single("allclose", {"rtol": 0.0, "atol": 0.25}, [1.5, 2.0], [1.0, 2.0])
    assert (passed, share) == (False, 0.5)


def test_a_share_outside_of_the_bound_is_allowed_up_to_the_largest_error() -> None:
    allowed = {"rtol": 0.0, "atol": 0.25, "matched": 0.75, "max_abs": 1.0}
    golden = [1.0, 2.0, 3.0, 4.0]
    assert single("matched", allowed, [1.5, 2.0, 3.0, 4.0], golden)[:3] == (
        True, "share outside", 0.25,
    )  # fmt: skip
    assert not single("matched", allowed, [1.5, 2.5, 3.0, 4.0], golden)[0]
    assert single("matched", allowed, [3.5, 2.0, 3.0, 4.0], golden)[:2] == (False, "max_abs")


def test_diff_figures_each_have_their_limit() -> None:
    golden = [1.0, 1.0, 1.0, 1.0]
    assert single("diff", {"diff1": 0.25, "diff2": 0.5}, [2.0, 1.0, 1.0, 1.0], golden)[0]
    found = single("diff", {"diff1": 0.25, "diff2": 0.4}, [2.0, 1.0, 1.0, 1.0], golden)
    assert found[:2] == (False, "diff2")
    assert found[2] == pytest.approx(0.5)
    found = single("diff", {"diff1": 0.5, "diff3": 0.5}, [2.0, 1.0, 1.0, 1.0], golden)
    assert found[:3] == (False, "diff3", 1.0)  # the largest relative error
    assert single("diff", {"diff1": 0.0}, golden, golden)[0]
    assert not single("diff", {"diff1": 0.0}, [1.5, 1.0, 1.0, 1.0], golden)[0]


def test_the_bias_is_the_share_of_errors_to_one_side() -> None:
    golden = torch.ones(4, dtype=torch.float64)
    made = errors(torch.tensor([1.5, 1.5, 1.5, 0.5], dtype=torch.float64), golden)
    assert made.diff4 == 0.75
    assert errors(golden, golden).diff4 == 0.5


@pytest.mark.parametrize(
    ("rmse", "words"),
    [(2.0**-14, None), (2.0**-12, "11 bits"), (2.0**-10, "8 bits"), (2.0**-7, None),
     (0.5, None), (0.6, "little to do")],
)  # fmt: skip
def test_what_an_error_of_a_size_looks_like(rmse: float, words: str | None) -> None:
    found = cause(rmse, "float32")
    assert found is None if words is None else words in str(found)


def test_the_worst_of_the_spread_figures_is_named() -> None:
    limit = replace(LIMIT, ratios={"diff1": 100.0, "rmse": 1.5})
    golden = torch.linspace(1, 2, 64, dtype=torch.float64)
    reference = golden.float()
    found = judge((golden * 1.001).float(), reference, golden, limit)
    assert found.status is RecordStatus.FAIL
    assert "rmse" in str(found.metric)
