"""The exact bounds, against values that can be computed by hand or summed directly."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.run.serve.gateway.bounds import requests_needed, tail, upper_bound, wilson


def direct_tail(failures: int, requests: int, rate: float) -> float:
    return sum(
        math.comb(requests, k) * rate**k * (1 - rate) ** (requests - k)
        for k in range(failures, requests + 1)
    )


@given(st.integers(1, 60), st.data(), st.floats(0.001, 0.999))
def test_the_tail_is_the_sum_of_its_terms(requests: int, data: st.DataObject, rate: float) -> None:
    failures = data.draw(st.integers(0, requests))
    # The continued fraction stops at 1e-14 relative; the sum of 60 terms loses a few digits.
    assert tail(failures, requests, rate) == pytest.approx(
        direct_tail(failures, requests, rate), rel=1e-9, abs=1e-12
    )


def test_the_rule_of_three_gives_the_requests_of_a_clean_proof() -> None:
    assert requests_needed(0, 0.001) == 2995
    assert requests_needed(0, 0.001, 0.99) == 4603
    assert upper_bound(0, 2995) <= 0.001 < upper_bound(0, 2994)


@given(st.integers(0, 40))
def test_needed_requests_are_the_fewest_that_reach_the_limit(failures: int) -> None:
    needed = requests_needed(failures, 0.001)
    assert upper_bound(failures, needed) <= 0.001 * (1 + 1e-9)
    assert upper_bound(failures, needed - 1) > 0.001


def test_without_requests_nothing_is_known() -> None:
    assert upper_bound(0, 0) == 1.0
    assert upper_bound(3, 3) == 1.0
    assert wilson(0, 0) == (0.0, 1.0)


def test_agreement_of_96_in_100_has_its_interval() -> None:
    low, high = wilson(96, 100)
    assert (round(low, 3), round(high, 3)) == (0.902, 0.984)
