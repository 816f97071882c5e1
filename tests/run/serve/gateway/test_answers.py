"""Pairs of answers: which times and tasks speak against the standby, and what follows."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from joymigrate.run.serve.evidence.answers import AnswerComparison, BackendReply, compare
from joymigrate.run.serve.evidence.aspects import TIMES
from joymigrate.run.serve.evidence.events import (
    PRIMARY,
    SECOND,
    AnswersCompared,
    Health,
    LedgerGate,
    RolloutPlan,
    RolloutTick,
)
from joymigrate.run.serve.evidence.rollout import Rollout
from joymigrate.run.serve.gateway.calls import GatewayCall
from joymigrate.run.serve.gateway.reader import AnswerReader
from joymigrate.run.serve.gateway.whole_answers import odd_calls, oddity
from joymigrate.run.serve.web.apis import CHAT


def ramping() -> Rollout:
    rollout = Rollout(RolloutPlan())
    rollout.handle(LedgerGate(0, True, "test"))
    rollout.handle(Health(0, SECOND, True))
    return rollout


def said(
    seconds: float = 1.0, first: float = 0.1, gap: float = 0.01, text: str = "good"
) -> BackendReply:
    return BackendReply(200, text, "stop", seconds, first, gap)


@pytest.mark.parametrize(
    ("ours", "aspect"),
    [
        (said(seconds=4.0), "slow"),
        (said(first=0.4), "first"),
        (said(gap=0.04), "between"),
        (said(seconds=31.0), "tail"),
    ],
)
def test_each_time_is_an_aspect_of_its_own(ours: BackendReply, aspect: str) -> None:
    told = compare(said(), ours, RolloutPlan(), greedy=False, tail_seconds=10.0)
    assert told[aspect] is True
    fine = compare(said(), said(), RolloutPlan(), greedy=False, tail_seconds=10.0)
    assert not any(fine.values())
    assert set(TIMES) <= set(fine)
    assert not set(TIMES) & set(compare(said(), ours, RolloutPlan(max_slowdown=0), greedy=False))


@pytest.mark.parametrize(
    ("theirs", "ours", "wrong"),
    [
        ("caf\u00e9 au lait", "caf\ufffd au lait", True),
        ("caf\ufffd au lait", "caf\u00e9 au lait", False),
        ("caf\ufffd au lait", "caf\ufffd au lait", None),  # both: the question's own characters
        ("au lait caf\u00e9", "au lait caf\ufffd", None),  # the end of a cut text
    ],
)
def test_characters_that_could_not_be_decoded_are_a_mark_of_their_side(
    theirs: str, ours: str, wrong: bool | None
) -> None:
    told = compare(said(text=theirs), said(text=ours), RolloutPlan(), greedy=False)
    assert told.get("broken") is wrong


TOOLS = {"tools": [{"type": "function", "function": {"name": "weigh"}}]}


@pytest.mark.parametrize(
    ("name", "arguments", "odd"),
    [
        ("weigh", '{"what": "tea"}', None),
        ("weigh", "", None),
        ("weigh", '{"what": "tea"', "no JSON"),
        ("wiegh", "{}", "not offered"),
        ("weigh", None, "NoneType"),
        (["weigh"], "{}", "not offered"),
    ],
)
def test_tool_calls_that_no_program_can_follow_are_odd(
    name: str, arguments: Any, odd: str | None
) -> None:
    call = GatewayCall(CHAT, "POST", "/v1/chat/completions", {}, b"", TOOLS, started=0.0)
    found = odd_calls([(name, arguments)], call)
    assert (found is None) if odd is None else (odd in str(found))
    message = {"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}
    whole = {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    assert oddity(AnswerReader.of(whole), call) == found
    cut = {"choices": [{"message": message, "finish_reason": "length"}]}
    assert oddity(AnswerReader.of(cut), call) is None  # the limit of tokens ended it


def test_a_filtered_answer_declines() -> None:
    filtered = BackendReply(200, "good", "content_filter")
    assert compare(said(), filtered, RolloutPlan(), greedy=True) == {"refusal": True}


def test_a_slow_tail_pauses_where_the_middle_is_fine() -> None:
    rollout = ramping()
    for number in range(400):
        seconds = 40.0 if number % 5 == 0 else 1.0
        told = compare(said(), said(seconds=seconds), rollout.plan, greedy=False, tail_seconds=2.0)
        rollout.handle(AnswersCompared(2000.0 + number, told))
        if rollout.state == "paused":
            break
    assert rollout.state == "paused"
    assert "slowest hundredth" in rollout.changes[-1].text
    assert number < 100


def test_questions_that_are_slow_for_both_are_no_slow_tail() -> None:
    rollout = ramping()
    for number in range(40):
        slow = said(seconds=40.0)
        told = compare(slow, slow, rollout.plan, greedy=False, tail_seconds=2.0)
        rollout.handle(AnswersCompared(2000.0 + number, told))
    assert rollout.state == "ramping", rollout.changes[-1].text


@pytest.mark.dear
def test_an_equal_standby_is_not_paused_for_its_times() -> None:
    rng = random.Random(3)
    paused = 0
    for _ in range(40):
        rollout = ramping()
        for number in range(1000):
            times = [rng.lognormvariate(0, 1.0) for _ in range(2)]
            told = compare(
                said(times[0], times[0] / 5, times[0] / 50),
                said(times[1], times[1] / 5, times[1] / 50),
                rollout.plan, greedy=False, tail_seconds=math.exp(2.33),
            )  # fmt: skip
            rollout.handle(AnswersCompared(2000.0 + number, told))
        paused += rollout.state == "paused"
    assert paused <= 2


def test_a_standby_that_fails_tasks_is_rolled_back() -> None:
    rollout = ramping()
    for number in range(60):
        ours = said(text="it is 41" if number % 2 else "it is 42")
        told = compare(said(text="it is 42"), ours, rollout.plan, greedy=False, expect="42")
        rollout.handle(AnswersCompared(2000.0 + number, told))
    assert rollout.state == "rolled_back"
    assert "failed the task" in rollout.changes[-1].text


def test_tasks_that_both_fail_say_nothing() -> None:
    told = compare(said(text="a"), said(text="b"), RolloutPlan(), greedy=False, expect="42")
    assert "task" not in told


def test_what_one_side_alone_gets_wrong_says_nothing_about_texts_and_times() -> None:
    silent = BackendReply(200, "", "stop", 9.0)
    talks = said(text="a long and friendly answer to the question")
    assert compare(silent, talks, RolloutPlan(), greedy=True) == {"empty": False}
    assert compare(talks, silent, RolloutPlan(), greedy=True) == {"empty": True}
    sorry = said(text="I'm sorry, I cannot help with that")
    assert compare(sorry, talks, RolloutPlan(), greedy=True) == {"refusal": False}


def test_json_is_judged_where_json_was_asked_for_and_the_text_is_whole() -> None:
    good, bad = said(text='{"a": 1}'), said(text='{"a": 1')
    assert compare(good, bad, RolloutPlan(), greedy=False, wants_json=True) == {"format": True}
    assert compare(bad, good, RolloutPlan(), greedy=False, wants_json=True) == {"format": False}
    assert "format" not in compare(good, bad, RolloutPlan(), greedy=False)
    thinking = BackendReply(200, 'Sorry, what? {"a": 1}', "stop", 1.0, 0.1, 0.01, thoughts=13)
    told = compare(good, thinking, RolloutPlan(), greedy=False, wants_json=True)
    assert not {"format", "refusal"} & told.keys(), "the reasoning before it is no answer"
    cut = BackendReply(200, '{"a": 1', "length", 1.0, 0.1, 0.01)
    assert "format" not in compare(good, cut, RolloutPlan(), greedy=False, wants_json=True)


def test_a_few_odd_answers_of_the_primary_stop_nobody() -> None:
    rollout = ramping()
    for number in range(490):
        told = {"empty": False} if number % 20 == 0 else {"text": False}
        rollout.handle(AnswersCompared(2000.0 + number, told))
    assert rollout.state == "ramping"


def differing(rollout: Rollout) -> float:
    """Let the texts differ until it is open who is wrong; the time of it."""
    now = 2000.0
    while rollout.doubt is None:
        now += 1
        rollout.handle(AnswersCompared(now, {"text": True}))
    assert (rollout.state, rollout.weight) == ("ramping", 1)
    assert "open which side is wrong" in rollout.missing(now)
    return now


@pytest.mark.parametrize(
    ("changed", "state", "weight"),
    [
        ({PRIMARY: True, SECOND: False}, "paused", 1),
        ({PRIMARY: False, SECOND: True}, "rolled_back", 0),
        ({PRIMARY: True, SECOND: True}, "paused", 0),
        ({PRIMARY: False, SECOND: False}, "paused", 0),
    ],
)
def test_the_side_that_changed_is_to_blame(
    changed: dict[str, bool], state: str, weight: float
) -> None:
    rollout = ramping()
    now = differing(rollout)
    for _ in range(60):
        rollout.handle(AnswersCompared(now, paired=False, changed=changed))
    assert (rollout.state, rollout.weight) == (state, weight)


def test_without_old_questions_the_doubt_ends_in_a_pause() -> None:
    rollout = ramping()
    now = differing(rollout)
    rollout.handle(RolloutTick(now + rollout.plan.suspect_seconds - 1))
    assert rollout.state == "ramping"
    rollout.handle(RolloutTick(now + rollout.plan.suspect_seconds))
    assert (rollout.state, rollout.weight) == ("paused", 0)
    assert "no earlier question could be asked again" in rollout.changes[-1].text


def test_texts_that_the_primary_finds_unlikely_are_limited_far_below_those_that_differ() -> None:
    def asked(unlikely: int, of: int) -> AnswerComparison:
        answers = AnswerComparison(RolloutPlan())
        for number in range(of):
            odd = unlikely and number % (of // unlikely) == 0
            answers.add({"text": False, "late": bool(odd), "unlikely": bool(odd)}, kind="k")
        return answers

    assert "33 of" not in asked(0, 40).missing()
    assert "unlikely by the primary's scores" in asked(0, 40).missing()
    assert not asked(0, 200).missing()
    assert "unlikely" in asked(20, 400).missing(), "5 % pass the limit of texts that differ"
    plain = AnswerComparison(RolloutPlan())
    for _ in range(60):
        plain.add({"text": False}, kind="k")
    assert not plain.missing(), "a primary that gives no scores proves what it can"
