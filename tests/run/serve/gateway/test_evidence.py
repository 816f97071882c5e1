"""The rules that decide on a rollback: what trips them, what does not, what survives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joymigrate.run.serve.gateway.evidence import Cusum, EProcess, Literal, Rule

RULES: dict[str, Callable[[], Rule]] = {
    "cusum": Cusum,
    "literal": lambda: Literal(window=50, minimum=10, limit=0.1),
    "eprocess": lambda: EProcess(limit=0.01, alpha=0.05),
}
streams = st.lists(st.one_of(st.just(-1), st.integers(1, 40)), max_size=60)


def feed(rule: Rule, stream: list[int], *, singly: bool) -> bool:
    """-1 is a failure, n is n successes."""
    tripped = False
    for item in stream:
        if item < 0:
            tripped = rule.failure()
            continue
        for _ in range(item if singly else 1):
            tripped = rule.successes(1 if singly else item)
    return tripped


@pytest.mark.parametrize("name", RULES)
@given(stream=streams)
@example(stream=[20, 40, -1, -1, -1, -1, 1, 29, 40, -1, -1, 1, 6, 40, 40, -1, -1, 1, 31])
def test_a_run_of_successes_counts_like_single_ones(name: str, stream: list[int]) -> None:
    whole, single = RULES[name](), RULES[name]()
    assert feed(whole, stream, singly=False) == feed(single, stream, singly=True)
    # Sums in another order differ in the last digits of a double.
    assert whole.level == pytest.approx(single.level, abs=1e-9)


@pytest.mark.parametrize("name", RULES)
@given(stream=streams, after=streams)
def test_a_saved_rule_goes_on_as_if_nothing_happened(
    name: str, stream: list[int], after: list[int]
) -> None:
    kept, saved = RULES[name](), RULES[name]()
    feed(kept, stream, singly=False)
    feed(saved, stream, singly=False)
    again = RULES[name]()
    again.restore(saved.state())
    assert feed(again, after, singly=False) == feed(kept, after, singly=False)


def test_seven_failures_in_a_row_trip_the_default_cusum() -> None:
    rule = Cusum()
    assert [rule.failure() for _ in range(7)] == [False] * 6 + [True]


def test_a_long_good_time_does_not_make_the_cusum_slower() -> None:
    rule = Cusum()
    rule.successes(10_000_000)
    assert [rule.failure() for _ in range(7)][-1]


def test_the_literal_rule_waits_for_its_minimum() -> None:
    rule = Literal()
    assert not any(rule.failure() for _ in range(999))
    assert rule.failure()


def test_reaching_the_minimum_by_successes_trips_the_literal_rule() -> None:
    rule = Literal()
    rule.failure()
    rule.failure()
    assert not rule.successes(997)
    assert rule.successes(1)


def test_a_failure_leaves_the_window_of_the_literal_rule() -> None:
    rule = Literal(window=2000, minimum=1000)
    rule.successes(1500)
    rule.failure()
    assert not rule.quiet
    rule.successes(2000)
    assert rule.quiet


def test_the_e_process_weighs_failures_against_the_record() -> None:
    fresh, proven = EProcess(), EProcess()
    proven.successes(1000)
    assert not fresh.failure(), "no single answer decides"
    assert not fresh.failure()
    assert fresh.failure(), "the first three of all failed: far above 0.1 %"
    assert not proven.failure()
    assert any(proven.failure() for _ in range(8))


@pytest.mark.parametrize("make", [Cusum, Literal, EProcess])
def test_a_rule_states_its_design(make: Callable[[], Rule]) -> None:
    assert any(mark.isdigit() for mark in make().describe())
