"""How right one answer is: bags of words, labels of sequences, tokens."""

from __future__ import annotations

from typing import Any

import pytest

from joymigrate.verify.task.normalise import field, same
from joymigrate.verify.task.score import accuracy, exact, f1, prefix, token, words


@pytest.mark.parametrize(
    ("mine", "wanted", "value"),
    [
        ("the cat sat", "the cat sat", 1.0),
        ("the cat", "the cat sat down", 2 * 2 / 6),
        ("the the the", "the cat", 2 * 1 / 5),  # a word counts as often as both have it
        ("dog", "cat", 0.0),
        ("", "", 1.0),
        ("", "cat", 0.0),
        ("cat", "", 0.0),
        ("今天天气", "今天下雨", 2 * 2 / 8),  # one sign at a time
        (["a", "b"], ["b", "c"], 0.5),
        ({"x": 1, "y": 2}, {"x": 1, "y": 3}, 0.5),
        (3, 3, 1.0),
        (3, 4, 0.0),
    ],
)
def test_f1_is_the_overlap_of_two_bags(mine: Any, wanted: Any, value: float) -> None:
    assert f1(mine, wanted) == pytest.approx(value)
    assert f1(wanted, mine) == pytest.approx(value)


def test_signs_of_scripts_without_spaces_are_words_and_letters_are_not() -> None:
    assert words("ab 天气 cd，好") == ["ab", "天", "气", "cd，", "好"]
    assert words("été") == ["été"]


def test_a_sequence_of_labels_is_right_by_position_and_the_longer_one_counts() -> None:
    assert accuracy(["A", "B", "C"], ["A", "X", "C", "D"]) == pytest.approx(2 / 4)
    assert accuracy(["A", "B"], ["A"]) == pytest.approx(1 / 2)
    assert accuracy([], []) == 1.0
    assert accuracy("A", "A") == exact("A", "A") == 1.0


def test_tokens_are_compared_with_a_list_of_tokens_only() -> None:
    assert token([1, 2, 3], [1, 2, 4]) == pytest.approx(2 / 3)
    assert token([1], "1") == 0.0


def test_the_prefix_ends_at_the_first_difference_or_with_the_shorter_one() -> None:
    assert [prefix([1, 2, 3], b) for b in ([1, 2, 4], [1, 2], [9], [], [1, 2, 3])] == [
        2,
        2,
        0,
        0,
        3,
    ]


NAN = float("nan")


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (NAN, NAN, True),
        (NAN, 1.0, False),
        (1.0, NAN, False),
        (0.5, 0.5, True),
        (0.5, 0.25, False),
        ([1, 2], [1, 2.0], True),
        ([1, 2], [1, 3], False),
        ([1, 2], [1], False),
        ([1], [1, 2], False),
        ([], [], True),
        ([NAN], [NAN], True),
        ({"a": [NAN]}, {"a": [NAN]}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, {"b": 1}, False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({}, [], False),
        ({"a": 1}, "a", False),
        ([1], "1", False),
    ],
)
def test_answers_are_equal_as_values_and_not_as_types(a: Any, b: Any, equal: bool) -> None:
    assert same(a, b) is equal
    assert same(b, a) is equal


def test_what_is_malformed_equals_nothing_and_not_itself() -> None:
    broken = field("no object", "call.name")
    assert not same(broken, broken)
    assert not same([broken], [broken])
