"""The rules that decide on a rollback: what trips them, what does not, what survives."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joymigrate.run.serve.evidence.rule import EProcess

streams = st.lists(st.one_of(st.just(-1), st.integers(1, 40)), max_size=60)


def feed(rule: EProcess, stream: list[int], *, singly: bool) -> bool:
    """-1 is a failure, n is n successes."""
    tripped = False
    for item in stream:
        if item < 0:
            tripped = rule.failure()
            continue
        for _ in range(item if singly else 1):
            tripped = rule.successes(1 if singly else item)
    return tripped


@given(stream=streams)
@example(stream=[20, 40, -1, -1, -1, -1, 1, 29, 40, -1, -1, 1, 6, 40, 40, -1, -1, 1, 31])
def test_a_run_of_successes_counts_like_single_ones(stream: list[int]) -> None:
    whole, single = EProcess(0.01, 0.05), EProcess(0.01, 0.05)
    assert feed(whole, stream, singly=False) == feed(single, stream, singly=True)
    # Sums in another order differ in the last digits of a double.
    assert whole.level == pytest.approx(single.level, abs=1e-9)


@given(stream=streams, after=streams)
def test_a_saved_rule_goes_on_as_if_nothing_happened(stream: list[int], after: list[int]) -> None:
    kept, saved = EProcess(0.01, 0.05), EProcess(0.01, 0.05)
    feed(kept, stream, singly=False)
    feed(saved, stream, singly=False)
    again = EProcess(0.01, 0.05)
    again.restore(saved.state())
    assert feed(again, after, singly=False) == feed(kept, after, singly=False)


def test_the_e_process_weighs_failures_against_the_record() -> None:
    fresh, proven = EProcess(), EProcess()
    proven.successes(1000)
    assert not fresh.failure(), "no single answer decides"
    assert not fresh.failure()
    assert fresh.failure(), "the first three of all failed: far above 0.1 %"
    assert not proven.failure()
    assert any(proven.failure() for _ in range(8))


@pytest.mark.parametrize("limit", [0.0001, 0.001, 0.1, 0.5, 0.9, 0.99])
def test_a_rule_states_its_design_and_finds_what_always_fails(limit: float) -> None:
    rule = EProcess(limit)
    assert any(mark.isdigit() for mark in rule.describe())
    assert any(rule.failure() for _ in range(3000))
