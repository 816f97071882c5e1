"""Printed numbers: what tells a formula from rounding and choices."""

from __future__ import annotations

from typing import Any

import pytest

from joymigrate.verify.findings import Findings
from joymigrate.verify.judge import Judge
from joymigrate.verify.model import RecordStatus
from joymigrate.verify.printed_stage import judge_printed, observe_prints
from joymigrate.verify.text_numbers import columns, distances
from joymigrate.verify.tolerance import Tolerance


class Recorded:
    """A process's record of what was printed."""

    def __init__(self, *lines: str) -> None:
        self.lines = lines

    def json(self, name: str) -> Any:
        return {"lines": list(self.lines), "left_out": 0}


def verdict(ours: list[str], theirs: list[str], *others: list[str], **more: Any) -> list[Any]:
    """How the target's lines are judged; `others` are the baseline's other runs."""
    a: Any = Recorded(*ours)
    b: Any = Recorded(*theirs)
    nulls = [observe_prints(ours, one) for one in others]
    judge = Judge(Tolerance.of(None).judge, nulls, tests=len(ours))
    return [row.status for row in judge_printed(a, b, judge, Findings(**more))]


def scores(values: list[float]) -> list[str]:
    return [f"request {n} scores {value:.4f}\n" for n, value in enumerate(values)]


PLAIN = [-3.415, -3.790, -4.568, -4.299, -4.029, -3.521, -4.064]
ROUNDED = [[one * (1 + off) for one in PLAIN] for off in (0.001, -0.0012)]


def test_numbers_are_held_to_how_far_the_baselines_own_runs_are_apart() -> None:
    null = [scores(values) for values in ROUNDED]
    near, far = (scores([one * (1 + off) for one in PLAIN]) for off in (0.0015, 0.4))
    assert RecordStatus.FAIL not in verdict(scores(PLAIN), near, *null)
    assert RecordStatus.FAIL in verdict(scores(PLAIN), far, *null)
    # Where the program may have chosen otherwise, that is a doubt.
    doubted = verdict(scores(PLAIN), far, *null, chosen=0)
    assert RecordStatus.WARN in doubted
    assert RecordStatus.FAIL not in doubted


def test_tokens_that_the_baselines_own_runs_choose_otherwise_are_not_told() -> None:
    ours, theirs = ["says [9, 4]\n"], ["says [25, 4]\n"]
    assert RecordStatus.FAIL in verdict(ours, theirs, ours, ours)
    assert verdict(ours, theirs, ours, ours, flips=True) == [RecordStatus.PASS]
    numbers = scores(PLAIN), scores([one * 1.4 for one in PLAIN])  # may follow from a choice
    null = [scores(values) for values in ROUNDED]
    doubted = verdict(*numbers, *null, flips=True)
    assert RecordStatus.WARN in doubted
    assert RecordStatus.FAIL not in doubted


def test_the_last_digit_that_is_printed_is_no_error() -> None:
    null = [scores(PLAIN)] * 2
    other = scores([one + 1e-4 for one in PLAIN])
    assert RecordStatus.FAIL not in verdict(scores(PLAIN), other, *null)


def test_a_baseline_that_was_run_once_tells_nothing_of_numbers() -> None:
    assert RecordStatus.FAIL not in verdict(scores(PLAIN), scores([one * 2 for one in PLAIN]))


def test_whole_numbers_are_the_same_but_where_other_runs_have_others() -> None:
    lines = [["right 31 of 64\n"], ["right 29 of 64\n"]]
    assert verdict(lines[0], lines[1], lines[0], lines[0]) == [RecordStatus.FAIL, RecordStatus.PASS]
    assert verdict(lines[0], ["right 28 of 64\n"], lines[0], lines[1]) == [RecordStatus.PASS]


def test_lines_of_source_files_are_no_numbers() -> None:
    ours = ["/a/utils.py:86: UserWarning: old", 'File "/a/b.py", line 12, in f', "x.cpp:30 3.5"]
    theirs = [one.replace("86", "87").replace("12", "14").replace("30", "31") for one in ours]
    assert columns(ours) == columns(theirs)
    assert [one[0].value for one in columns(ours).values()] == [3.5]
    assert columns(["epoch.py 3"]) != columns(["epoch.py 4"])


def test_a_difference_of_other_numbers_carries_their_rounding() -> None:
    line = "{{'logps/chosen': '-52.71', 'logps/rejected': '-49.3', 'rewards/margins': '{}'}}"
    apart = {}
    for ours, theirs in (("8.488e-06", "8.297e-06"), ("0.0849", "0.083")):
        a, b = (columns([line.format(one)]) for one in (ours, theirs))
        column = next(one for one in a if "margins" in one.words)
        ((_, apart[ours]),) = distances(a[column], b[column]).points
    assert apart["8.488e-06"] == 0.0
    assert apart["0.0849"] > 0.02


@pytest.mark.parametrize("name", ["lr", "train/learning_rate", "weight_decay"])
def test_a_setting_carries_no_rounding_of_what_stands_beside_it(name: str) -> None:
    a, b = (columns([f"ppl 5423.1, {name}: {one}"]) for one in ("1.0e-06", "5.0e-06"))
    column = next(one for one in a if name[-4:] in one.words)
    assert distances(a[column], b[column]).points[0][1] > 1
