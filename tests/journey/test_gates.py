"""Gates are read strictly, and hold what they name."""

from __future__ import annotations

import pytest

from joymigrate.errors import JoyError
from joymigrate.journey.gates import Gates, read_gates, refuses


def test_defaults_let_an_undecided_comparison_go_on() -> None:
    gates = read_gates({})
    assert gates == Gates()
    assert gates.rehearse
    assert not refuses(gates.verify, "inconclusive")
    assert refuses(gates.verify, "fail")


@pytest.mark.parametrize(
    ("limit", "verdict", "held"),
    [
        ("pass", "pass", False),
        ("pass", "inconclusive", True),
        ("pass", "fail", True),
        ("inconclusive", "inconclusive", False),
        ("inconclusive", "fail", True),
        ("off", "fail", False),
        ("pass", None, False),
    ],
)
def test_a_verdict_gate_names_the_worst_that_goes_on(
    limit: str, verdict: str | None, held: bool
) -> None:
    assert refuses(limit, verdict) is held


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"covrage": 95}, "coverage"),
        ({"coverage": "95"}, "number"),
        ({"coverage": True}, "number"),
        ({"coverage": -1}, "from 0 on"),
        ({"rehearse": 1}, "true or false"),
        ({"verify": "fail"}, "inconclusive"),
    ],
)
def test_a_wrong_gate_is_named_with_what_would_be_right(raw: dict, words: str) -> None:
    with pytest.raises(JoyError) as caught:
        read_gates(raw)
    assert words in f"{caught.value} {caught.value.help}"
