"""Closed forms against sums over all outcomes, published examples, and each other."""

from __future__ import annotations

import math
from fractions import Fraction
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate import stats as s


@given(st.integers(0, 60), st.integers(1, 60))
def test_mcnemar_is_the_sum_of_binomial_terms(lost: int, gained: int) -> None:
    n = lost + gained
    tail = Fraction(sum(comb(n, i) for i in range(min(lost, gained) + 1)), 2**n)
    assert s.mcnemar_exact(lost, gained) == pytest.approx(float(min(Fraction(1), 2 * tail)))


@given(st.integers(0, 40), st.integers(1, 40), st.floats(0.01, 0.99))
def test_the_binomial_tail_is_the_sum(k: int, n: int, p: float) -> None:
    wanted = sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(min(k, n) + 1))
    assert s.binomial_tail(k, n, p) == pytest.approx(wanted, rel=1e-9)


def test_mcnemar_of_many_pairs_does_not_overflow() -> None:
    assert s.mcnemar_exact(0, 5000) == 0.0 or s.mcnemar_exact(0, 5000) < 1e-300
    assert s.mcnemar_exact(500_000, 500_000) == 1.0
    z = (501_500 - 498_500) / math.sqrt(1_000_000)  # the normal limit
    assert s.mcnemar_exact(498_500, 501_500) == pytest.approx(2 * (1 - s.NORMAL.cdf(z)), rel=5e-3)


def test_wilson_gives_the_published_intervals() -> None:
    thousand, hundred = s.wilson(960, 1000), s.wilson(96, 100)
    assert [round(100 * x, 1) for x in (thousand.low, thousand.high)] == [94.6, 97.0]
    assert [round(100 * x, 1) for x in (hundred.low, hundred.high)] == [90.2, 98.4]


@given(st.integers(0, 300), st.integers(1, 300), st.sampled_from([0.9, 0.95, 0.99]))
def test_the_ends_of_wilson_solve_its_equation(k: int, n: int, confidence: float) -> None:
    k = min(k, n)
    z = s.NORMAL.inv_cdf(0.5 + confidence / 2)
    found = s.wilson(k, n, confidence)
    assert 0 <= found.low <= found.value <= found.high <= 1
    for end in (found.low, found.high):
        if 0 < end < 1:
            distance = (k / n - end) / math.sqrt(end * (1 - end) / n)
            assert abs(distance) == pytest.approx(z, rel=1e-6)


def test_no_sample_knows_nothing() -> None:
    assert (s.wilson(0, 0).low, s.wilson(0, 0).high) == (0, 1)
    assert (s.tango_interval(0, 0, 0).low, s.tango_interval(0, 0, 0).high) == (-1, 1)


def test_with_many_pairs_tango_is_the_published_interval() -> None:
    # Agresti, Categorical Data Analysis, approval ratings of 1,600 people asked twice.
    found = s.tango_interval(gained=86, lost=150, n=1600)
    assert found.value == pytest.approx(-0.04)
    assert (round(found.low, 3), round(found.high, 3)) == (-0.059, -0.021)
    assert s.mcnemar_exact(150, 86) == pytest.approx(3e-5, rel=0.3)  # z = -4.17


def test_without_discordant_pairs_the_score_test_has_its_closed_form() -> None:
    for n, margin in ((100, 0.005), (1000, 0.005), (600, 0.01)):
        wanted = math.sqrt(n * margin / (1 - margin))
        assert s.tango_z(0, 0, n, -margin) == pytest.approx(wanted)


@settings(max_examples=60)
@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 400))
def test_tango_is_symmetric_and_its_ends_solve_its_equation(
    gained: int, lost: int, same: int
) -> None:
    n = gained + lost + same
    if n == 0:
        return
    found, mirror = s.tango_interval(gained, lost, n), s.tango_interval(lost, gained, n)
    assert found.low == pytest.approx(-mirror.high, abs=1e-9)
    z = s.NORMAL.inv_cdf(0.975)
    if found.low > -0.999 and found.high < 0.999:
        assert s.tango_z(gained, lost, n, found.low) == pytest.approx(z, rel=1e-4, abs=1e-4)
        assert s.tango_z(gained, lost, n, found.high) == pytest.approx(-z, rel=1e-4, abs=1e-4)


def test_tango_holds_its_level_by_exact_enumeration() -> None:
    # At the edge of the hypothesis (true difference -margin) at most about alpha may pass.
    n, margin, alpha = 60, 0.1, 0.05
    for lose, gain in ((0.15, 0.05), (0.1, 0.0), (0.25, 0.15)):
        passed = 0.0
        for lost in range(n + 1):
            for gained in range(n - lost + 1):
                if s.tango_z(gained, lost, n, -margin) <= s.NORMAL.inv_cdf(1 - alpha):
                    continue
                ways = comb(n, lost) * comb(n - lost, gained)
                stay = (1 - lose - gain) ** (n - lost - gained)
                passed += ways * lose**lost * gain**gained * stay
        assert passed < 1.5 * alpha  # asymptotic; the discreteness of n = 60 adds


@pytest.mark.parametrize(
    ("freedom", "p", "value"),
    # Tables of Student's distribution in any textbook.
    [(1, 0.975, 12.7062), (5, 0.95, 2.01505), (10, 0.975, 2.22814), (30, 0.995, 2.75000)],
)
def test_student_quantiles_are_those_of_the_tables(freedom: int, p: float, value: float) -> None:
    assert s.t_quantile(p, freedom) == pytest.approx(value, abs=5e-5)
    assert s.t_quantile(1 - p, freedom) == pytest.approx(-value, abs=5e-5)


@given(st.floats(-30, 30))
def test_student_with_one_degree_is_cauchy(t: float) -> None:
    assert s.t_tail(t, 1) == pytest.approx(
        0.5 - math.atan(t) / math.pi, abs=1e-8
    )  # x = 1 - t^2 rounds


def test_the_number_of_pairs_for_a_tie_of_four_percent_discordance() -> None:
    assert s.paired_n(0.04, 0.005, 0.05, 0.8) == pytest.approx(9893, abs=5)
    assert s.paired_n(0.04, 0.01, 0.05, 0.8) == pytest.approx(2474, abs=3)
    assert s.paired_n(0.0, 0.005, 0.05, 0.8) == pytest.approx(1237, abs=3)
    assert s.paired_n(0.04, 0.0, 0.05, 0.8) is None


def test_a_mean_of_one_value_has_no_interval() -> None:
    assert s.mean_interval(1, 0.5, 0.0, 0.9).low == -math.inf
    assert s.t_p_value(1, 0.5, 0.0) == 1.0


def test_quantiles_are_linear_between_values() -> None:
    assert s.quantile([0.0, 1.0, 2.0, 3.0], 0.5) == 1.5
    assert math.isnan(s.quantile([], 0.5))


def test_the_number_of_pairs_for_a_mean_grows_with_the_square_of_the_spread() -> None:
    # (1.6449 + 0.8416)^2 = 6.1826 at alpha 0.05 and power 0.8
    assert s.mean_n(1.0, 0.1, 0.05, 0.8) == math.ceil(6.18256 / 0.01)
    assert s.mean_n(2.0, 0.1, 0.05, 0.8) == math.ceil(4 * 6.18256 / 0.01)
    assert s.mean_n(0.0, 0.1, 0.05, 0.8) == 2
    assert s.mean_n(1.0, 0.0, 0.05, 0.8) is None


def test_values_without_spread_are_certain() -> None:
    assert s.t_p_value(5, 1.0, 0.0, against=1.0) == 1.0
    assert s.t_p_value(5, 1.0, 0.0, against=0.0) == 0.0
    assert [s.t_tail_of(5, distance, 0.0) for distance in (-1.0, 0.0, 1.0)] == [1.0, 1.0, 0.0]
    assert s.t_tail_of(1, 1.0, 1.0) == 1.0


def test_a_mean_is_tested_and_bounded_by_the_same_distribution() -> None:
    found = s.mean_interval(11, 0.5, 0.44, 0.95)  # half a width: 2.22814 * sqrt(0.04)
    assert (found.low, found.high) == pytest.approx((0.5 - 0.445628, 0.5 + 0.445628), abs=1e-5)
    assert s.t_p_value(11, 0.5, 0.44, against=found.low) == pytest.approx(0.05, abs=1e-6)
    assert s.t_tail_of(11, 0.445628, 0.44) == pytest.approx(0.025, abs=1e-6)


def test_quantiles_between_values_and_at_the_ends() -> None:
    assert [s.quantile([1.0, 3.0], p) for p in (0.0, 0.25, 1.0)] == [1.0, 1.5, 3.0]
