"""The bounds that hold at any time, against values that can be computed by hand."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.run.serve.evidence.blame import SHARED, UNKNOWN, blame
from joymigrate.run.serve.evidence.bounds import (
    chance_of_more,
    log_evidence,
    requests_needed,
    upper_bound,
)
from joymigrate.run.serve.evidence.events import SECOND, RequestTally


def test_a_clean_proof_takes_a_tenth_more_than_a_single_look() -> None:
    # A single look needs 2,995 requests for 0.1 % at 95 % (the rule of three).
    assert requests_needed(0, 0.001) == 3291
    assert upper_bound(0, 3291) <= 0.001 < upper_bound(0, 3290)


@given(st.integers(0, 40))
def test_needed_requests_are_the_fewest_that_reach_the_limit(failures: int) -> None:
    needed = requests_needed(failures, 0.001)
    assert upper_bound(failures, needed) <= 0.001 * (1 + 1e-9)
    assert upper_bound(failures, needed - 1) > 0.001


def test_without_requests_nothing_is_known() -> None:
    assert upper_bound(0, 0) == 1.0
    assert upper_bound(3, 3) == 1.0


@given(st.integers(0, 5), st.integers(6, 400), st.floats(0.01, 0.5))
def test_the_evidence_at_the_tested_rate_is_a_fair_game(k: int, n: int, rate: float) -> None:
    # One more request, drawn at the tested rate, changes the expected evidence by nothing: that
    # is what makes the bound hold at every time (a martingale).
    now = math.exp(log_evidence(k, n, rate))
    then = rate * math.exp(log_evidence(k + 1, n + 1, rate))
    then += (1 - rate) * math.exp(log_evidence(k, n + 1, rate))
    assert then == pytest.approx(now, rel=1e-9)


def test_looking_after_every_request_errs_in_at_most_5_percent() -> None:
    # At a true rate equal to the limit, a wrong "below the limit" at any of 2,000 looks.
    rng, limit, wrong = random.Random(1), 0.02, 0
    for _ in range(300):
        k = 0
        for n in range(1, 2001):
            k += rng.random() < limit
            if n >= 3 / limit and n % 10 == 0 and log_evidence(k, n, limit) >= math.log(20):
                wrong += 1
                break
    # 5 % of 300 are 15; more than 25 has a probability below 1 %.
    assert wrong <= 25


def test_chance_is_fishers_exact_test() -> None:
    # 7 of 7 against 0 of 7: one arrangement of 14 over 7.
    assert chance_of_more(7, 7, 0, 7) == pytest.approx(1 / math.comb(14, 7))
    assert chance_of_more(0, 10, 5, 10) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("ours", "theirs", "fault"),
    [
        ((7, 7), (0, 0), SECOND),
        ((7, 7), (7, 0), SECOND),
        ((7, 7), (28, 28), SHARED),
        ((70, 7), (7, 0), UNKNOWN),
        ((70, 7), (60, 0), SECOND),
        ((140, 7), (140, 6), SHARED),
        ((140, 7), (7, 1), UNKNOWN),
    ],
)
def test_blame_needs_the_primarys_record(
    ours: tuple[int, int], theirs: tuple[int, int], fault: str
) -> None:
    assert blame(RequestTally(*ours), RequestTally(*theirs)) == fault
