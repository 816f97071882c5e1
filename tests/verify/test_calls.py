"""Both sides' calls held against each other: what differs is told with its line on each side."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from joymigrate.verify.call_trace import CallTrace
from joymigrate.verify.calls import cause_of, differences
from joymigrate.verify.source_lines import where

X = torch.randn(2, 3, 4, 4)


def traced(work: Any) -> list[list[Any]]:
    trace = CallTrace(lambda: "")
    with trace:
        work()
    return trace.calls[""]


def told(ours: Any, theirs: Any) -> list[tuple[str, str]]:
    return [(one.cause, str(one.words)) for one in differences(traced(ours), traced(theirs))]


def scaled(corners: bool) -> torch.Tensor:
    return F.interpolate(X, size=(7, 7), mode="bilinear", align_corners=corners)


def test_another_argument_is_named_with_both_values_and_lines() -> None:
    ours, theirs = traced(lambda: scaled(False)), traced(lambda: scaled(True))
    (found,) = differences(ours, theirs)
    assert str(found.words) == "`interpolate(align_corners=True)`, False in the baseline"
    assert found.lines[0].startswith("tests/verify/test_calls.py:")
    assert found.lines[0] == found.lines[1]


def test_operators_that_one_side_has_alone_shift_no_others() -> None:
    plain = lambda: F.leaky_relu(X * 2.0, 0.1).sum()  # noqa: E731
    more = lambda: F.leaky_relu((X * 2.0).clamp(max=1.0), 0.1).sum()  # noqa: E731
    assert told(plain, more) == [("an operator added", "`clamp(max=1)` added")]
    assert told(more, plain) == [("an operator left out", "`clamp(max=1)` left out")]


def test_another_operator_is_named_with_the_baselines() -> None:
    ours, theirs = (lambda: F.relu(X)), (lambda: F.gelu(X))
    ((kind, words),) = told(ours, theirs)
    assert (kind, words.split(",")[0][:6]) == ("another operator", "`gelu(")


def test_calls_are_aligned_by_their_numbers_where_operators_repeat() -> None:
    ours = lambda: X - (X * 0.9 + X) * 0.2  # noqa: E731
    theirs = lambda: X - ((X * 0.9 + X) * 0.9 + X) * 0.2  # noqa: E731
    assert told(ours, theirs) == [("an operator added", "`mul(0.9)`, `add()` added")]
    other = lambda: X - (X * 0.2 + X) * 0.2  # noqa: E731
    assert told(ours, other) == [("another argument", "`mul(0.2)`, 0.9 in the baseline")]


def test_devices_copies_and_spelling_are_no_difference() -> None:
    ours = lambda: (X.to("cpu") * 0.5).contiguous()  # noqa: E731
    theirs = lambda: torch.mul(X.clone(), 0.5)  # noqa: E731
    assert told(ours, theirs) == []
    assert told(lambda: 0.5 * X, lambda: X * 0.5000000001) == []
    assert told(lambda: X.half(), lambda: X.float() * 2)[0][0] != ""
    assert told(lambda: X.to(torch.float64), lambda: X.to(torch.float32)) == []


def test_code_that_is_another_altogether_is_no_cause() -> None:
    ours = [["mul", {"0": "float[2]", "1": float(n)}, f"a.py:{n}"] for n in range(20)]
    theirs = [["mul", {"0": "float[2]", "1": n + 0.5}, f"a.py:{n}"] for n in range(20)]
    assert cause_of(ours, theirs) is None
    assert cause_of(None, theirs) is None
    assert cause_of(ours, ours) is None


def test_a_line_is_the_programs_own() -> None:
    assert where().startswith("tests/verify/test_calls.py:")


def test_a_function_that_names_no_arguments_is_held_by_their_order() -> None:
    named = [["batch_norm", {"input": "float[2]", "momentum": 0.1, "eps": 1e-5}, "a.py:1"]]
    placed = [["batch_norm", {"0": "float[2]", "1": 0.1, "2": 1e-5}, "b.py:1"]]
    assert cause_of(named, placed) is None
    placed[0][1]["1"] = 0.2
    assert "momentum=0.2" in str(cause_of(named, placed).words)  # type: ignore[union-attr]


def test_numbers_that_become_tensors_are_no_calls() -> None:
    made = lambda: X * torch.tensor(2.0, dtype=torch.float32)  # noqa: E731
    held = torch.tensor(2.0)
    assert told(made, lambda: X * held) == []


def test_casts_to_16_bits_and_perhaps_back_are_reduced_precision() -> None:
    plain = lambda: (X * 2.0).softmax(-1)  # noqa: E731
    back = lambda: (X * 2.0).half().float().softmax(-1)  # noqa: E731
    other = lambda: (X * 2.0).half().float().abs().softmax(-1)  # noqa: E731
    assert [kind for kind, _ in told(plain, back)] == ["reduced precision"]
    assert [kind for kind, _ in told(plain, other)] == ["an operator added"]
    assert [kind for kind, _ in told(plain, lambda: (X.double() * 2.0).softmax(-1))] != [
        "reduced precision"
    ]
