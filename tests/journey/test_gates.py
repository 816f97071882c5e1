"""Gates are read strictly, and hold what they name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.journey.gates import OF, Gates, find_violation, read_gates, refuses
from joymigrate.verify.scope import least_share


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
        ({"coverage": -1}, "the least is 0"),
        ({"coverage": 101}, "the most is 100"),
        ({"automatic": float("nan")}, "not a number"),
        ({"fallbacks": 1.5}, "whole number"),
        ({"by_hand": float("inf")}, "whole number"),
        ({"rehearse": 1}, "true or false"),
        ({"verify": "fail"}, "inconclusive"),
    ],
)
def test_a_wrong_gate_is_named_with_what_would_be_right(raw: dict, words: str) -> None:
    with pytest.raises(JoyError) as caught:
        read_gates(raw)
    assert words in f"{caught.value} {caught.value.help}"


@pytest.mark.parametrize(
    ("step", "gate", "limit", "figure", "holds", "fails"),
    [
        ("scan", "automatic", 70, "automatic_pct", 70.0, 69.9),
        ("scan", "by_hand", 3, "not_automatic", 3, 4),
        ("baseline", "baseline", True, "failure", "needs a GPU", "broken"),
        ("rehearse", "rehearse", True, "exit_code", 0, 1),
        ("rehearse", "fallbacks", 1, "fallbacks", 1, 2),
        ("rehearse", "refusals", 3, "refusals", 3, 4),
        ("rehearse", "memory_gib", 2, "peak_bytes", 2 * 2**30, 2 * 2**30 + 1),
        ("coverage", "coverage", 95, "calls_pct", 95.0, 94.99),
        ("verify", "verified", 95, "verified_pct", 95.0, 100 * least_share({})),
    ],
)
def test_a_limit_just_holds_and_just_fails(
    step: str, gate: str, limit: Any, figure: str, holds: Any, fails: Any
) -> None:
    gates = Gates(**{gate: limit})
    rest = {"said": "it fell over"}
    assert find_violation(step, {figure: holds, **rest}, "pass", gates) is None
    found = find_violation(step, {figure: fails, **rest}, "pass", gates)
    assert found is not None
    assert (found.gate, found.limit) == (gate, limit)
    off = Gates(**{gate: False if isinstance(limit, bool) else None})
    assert find_violation(step, {figure: fails, **rest}, "pass", off) is None


@pytest.mark.parametrize(("step", "gate"), [("verify", "verify"), ("train", "loss")])
def test_a_verdict_is_held_by_its_own_gate(step: str, gate: str) -> None:
    assert find_violation(step, {}, "inconclusive", Gates(**{gate: "inconclusive"})) is None
    found = find_violation(step, {}, "inconclusive", Gates(**{gate: "pass"}))
    assert found is not None
    assert found.why == "the verdict is inconclusive; the gate asks for pass"
    assert find_violation(step, {}, "fail", Gates(**{gate: "inconclusive"})) is not None
    assert find_violation(step, {}, "fail", Gates(**{gate: "off"})) is None


def test_a_model_without_an_answer_is_held() -> None:
    assert find_violation("serve", {}, "pass", Gates()) is None
    assert find_violation("serve", {}, "fail", Gates()) is not None
    assert find_violation("serve", {}, "fail", Gates(serve=False)) is None


def test_every_gate_belongs_to_a_step() -> None:
    names = [name for gates in OF.values() for name in gates]
    assert sorted(names) == sorted(field.name for field in fields(Gates))


def test_a_figure_that_is_missing_holds_nothing() -> None:
    strict = Gates(automatic=100, by_hand=0, fallbacks=0, memory_gib=0, coverage=100)
    assert all(find_violation(step, {}, "pass", strict) is None for step in OF)
