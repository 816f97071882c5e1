"""Non-inferiority of scores: identical sides, scores where less is better, needed pairs."""

from __future__ import annotations

import pytest

from joymigrate import stats
from joymigrate.verify.model import Outcome
from joymigrate.verify.task import judge
from joymigrate.verify.task.figures import Paired
from joymigrate.verify.task.judge import AcceptanceRule, decide_outcome


def paired(*pairs: tuple[float, float]) -> Paired:
    found = Paired()
    for baseline, target in pairs:
        found.add(baseline, target, str(found.n))
    return found


def test_equal_scores_bound_what_may_differ_unseen_on_the_scale_that_was_seen() -> None:
    same = paired(*((value, value) for value in [2.0, 5.0, 12.0] * 100))
    rule = AcceptanceRule(margin=0.2)
    interval, p_worse, p_different, needed, test = judge.test_difference(same, rule)
    unseen = (1 - 0.05 ** (1 / 300)) * 10  # 300 pairs without a difference; scores span 10
    assert (interval.low, interval.value, interval.high) == pytest.approx((-unseen, 0.0, unseen))
    assert (p_different, test) == (1.0, "exact bound")
    assert p_worse < rule.alpha  # unseen is about 0.1
    assert needed == stats.paired_n(0.0, 0.2 / 10, rule.alpha, rule.power)
    assert judge.test_difference(same, AcceptanceRule(margin=0.05))[1] == 1.0


def test_one_score_for_everything_needs_no_more_pairs_than_there_are() -> None:
    constant = paired(*[(3.5, 3.5)] * 20)
    interval, _, _, needed, _ = judge.test_difference(constant, AcceptanceRule(margin=0.1))
    assert (interval.low, interval.high, needed) == (0.0, 0.0, 20)


@pytest.mark.parametrize("higher", [True, False])
def test_worse_is_less_or_more_as_the_score_says(higher: bool) -> None:
    """The target is 1 lower in each of 40 pairs, with a spread of its own."""
    values = [(10.0 + i % 3, 9.0 + i % 3 + (i % 2) * 0.1) for i in range(40)]
    rule = AcceptanceRule(margin=0.2, higher_is_better=higher)
    difference, p_worse, p_different, needed, test = judge.test_difference(paired(*values), rule)
    outcome, reason = decide_outcome(difference, p_worse, p_different, rule, 40, needed)
    assert outcome is (Outcome.FAIL if higher else Outcome.PASS)
    assert test.startswith("paired t test")
    assert ("is worse" in reason) == higher


def test_right_and_wrong_count_the_other_way_round_where_less_is_better() -> None:
    few = paired(*[(1.0, 1.0)] * 900, *[(1.0, 0.0)] * 90, *[(0.0, 1.0)] * 10)
    up, down = (
        judge.test_difference(few, AcceptanceRule(higher_is_better=higher))
        for higher in (True, False)
    )
    assert up[1] > 0.99
    assert down[1] < 0.01
    assert up[0] == down[0]  # the interval is of target minus baseline in both


def test_too_few_pairs_say_how_many_would_do() -> None:
    rule = AcceptanceRule()
    outcome, reason = decide_outcome(stats.Interval(0.0, -0.1, 0.1), 0.4, 1.0, rule, 50, 1237)
    assert outcome is Outcome.INCONCLUSIVE
    assert "about 1,237 pairs" in reason
    assert "about" not in decide_outcome(stats.Interval(0, 0, 0), 0.4, 1.0, rule, 50, None)[1]
    assert decide_outcome(stats.Interval(0, 0, 0), 0.0, 1.0, rule, 0, None)[0] is (
        Outcome.INCONCLUSIVE
    )


def test_a_pass_inside_the_margin_still_says_when_it_is_worse_beyond_doubt() -> None:
    rule = AcceptanceRule(margin=0.01)
    outcome, reason = decide_outcome(stats.Interval(-0.004, -0.006, -0.002), 1e-4, 1e-3, rule, 9, 1)
    assert outcome is Outcome.PASS
    assert "worse beyond doubt" in reason
    better = decide_outcome(stats.Interval(0.004, 0.002, 0.006), 1e-4, 1e-3, rule, 9, 1)[1]
    assert "beyond doubt" not in better
