"""Printed numbers: what tells a formula from rounding and choices."""

from __future__ import annotations

import math
from typing import Any

import pytest

from joymigrate.verify.model import Difference, Status
from joymigrate.verify.printed_stage import judge_printed
from joymigrate.verify.text_numbers import columns, errors
from joymigrate.verify.watch_record import Watched


class Recorded:
    """A process's record of what was printed."""

    def __init__(self, *lines: str) -> None:
        self.lines = lines

    def json(self, name: str) -> Any:
        return {"lines": list(self.lines), "left_out": 0}


def verdict(ours: list[str], theirs: list[str], drifted: float | None) -> list[Status]:
    a: Any = Recorded(*ours)
    b: Any = Recorded(*theirs)
    watched = Watched(chooses=True)
    if drifted is not None:
        watched.rows.append(
            Difference(module="model", call=0, phase="loss", op="loss", metric="watch",
                       value=drifted, limit=0.02, status=Status.PASS, stage="S5W")
        )  # fmt: skip
    return [row.status for row in judge_printed(a, b, watched).rows]


SCORES = [-3.415, -3.790, -4.568, -4.299, -4.029, -3.521, -4.064]
LENGTHS = [8, 8, 9, 8, 8, 8, 8]
ROUNDED = [-3.420, -3.789, -4.639, -4.311, -4.040, -3.859, -4.058]  # of a clean run in bfloat16


def requests(scores: list[float]) -> list[str]:
    return [f"request {n} {score:.4f}\n" for n, score in enumerate(scores)]


def test_scores_that_all_depart_the_same_way_are_another_formula() -> None:
    other = [score * n**0.1 for score, n in zip(ROUNDED, LENGTHS, strict=True)]
    assert Status.FAIL in verdict(requests(SCORES), requests(other), None)
    assert Status.FAIL not in verdict(requests(SCORES), requests(ROUNDED), None)
    # Some requests took another way: that says nothing about the others.
    chosen = [-6.1, -2.2, -7.4, *ROUNDED[3:]]
    assert Status.FAIL not in verdict(requests(SCORES), requests(chosen), None)
    # One line alone, or the same line again and again, is one observation.
    assert Status.FAIL not in verdict(requests([-3.4] * 7), requests([-4.2] * 7), None)


@pytest.mark.parametrize(("drifted", "fails"), [(1e-6, True), (1e-2, False), (math.inf, False)])
def test_a_share_of_right_answers_is_held_to_losses_that_agree(drifted: float, fails: bool) -> None:
    ours = [f"{{'eval_right': {value}}}\n" for value in (0.01613, 0.03226)]
    theirs = [f"{{'eval_right': {value}}}\n" for value in (0.01136, 0.02273)]
    assert (Status.FAIL in verdict(ours, theirs, drifted)) is fails


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
        (apart[ours],) = errors(a[column], b[column])
    assert apart["8.488e-06"] == 0.0
    assert apart["0.0849"] > 0.02


@pytest.mark.parametrize("name", ["lr", "train/learning_rate", "weight_decay"])
def test_a_setting_carries_no_rounding_of_what_stands_beside_it(name: str) -> None:
    a, b = (columns([f"ppl 5423.1, {name}: {one}"]) for one in ("1.0e-06", "5.0e-06"))
    column = next(one for one in a if name[-4:] in one.words)
    assert errors(a[column], b[column])[0] > 1
