"""What is wrong at one kind of question, at another's answer, or against a wish is seen."""

from __future__ import annotations

import asyncio
import json
import random
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from joymigrate.run.serve.evidence.answers import ALPHA, AnswerComparison, BackendReply, observe
from joymigrate.run.serve.evidence.events import AnswersCompared, RolloutPlan
from joymigrate.run.serve.evidence.kinds import KIND_PAIRS, KINDS, RECENT, Kinds
from joymigrate.run.serve.evidence.rollout import Rollout
from joymigrate.run.serve.evidence.stock_answers import Canned
from joymigrate.run.serve.gateway import whole_answers
from joymigrate.run.serve.gateway.account import account_of, reply_of
from joymigrate.run.serve.gateway.calls import GatewayCall
from joymigrate.run.serve.gateway.kinds import label_of
from joymigrate.run.serve.gateway.meters import GatewayMeters
from joymigrate.run.serve.gateway.reader import AnswerReader, words_of_calls
from joymigrate.run.serve.gateway.relay_parts import Heard
from joymigrate.run.serve.gateway.settings import ShadowSettings
from joymigrate.run.serve.gateway.shadow import ASKED_BYTES, TRIES, Shadow, compare_repetitions
from joymigrate.run.serve.gateway.shadow_calls import plain
from joymigrate.run.serve.gateway.stream import RelayedStream
from joymigrate.run.serve.monitor.metrics import Metrics
from joymigrate.run.serve.web import forms
from joymigrate.run.serve.web.apis import CHAT, TEXT, ApiRoute

ROLES = ("primary", "standby")


def call(kind: ApiRoute = CHAT, **body: Any) -> GatewayCall:
    path = {CHAT: "/v1/chat/completions", TEXT: "/v1/completions"}[kind]
    asked = {"model": "m", **body}
    return GatewayCall(kind, "POST", path, {}, orjson.dumps(asked), asked, 0.0)


# Kinds


def test_several_tokens_in_an_event_are_no_other_answer() -> None:
    seen = []
    for pieces in (["one ", "two ", "three"], ["one two ", "three"]):
        stream = RelayedStream(forms.CHAT, keep=True)
        for piece in pieces:
            event = {"choices": [{"index": 0, "delta": {"content": piece}}]}
            stream.feed(b"data: " + orjson.dumps(event) + b"\n\n")
        seen.append(observe(reply_of(stream, call(), 1.0), wants_json=False))
    assert seen[0] == seen[1]


def test_a_kind_that_is_always_wrong_is_not_lost_among_the_others() -> None:
    answers = AnswerComparison(RolloutPlan())
    for number in range(2000):
        rare = number % 50 == 0
        kind = "rare" if rare else f"kind {number % 7}"
        tripped = answers.add({"text": rare}, kind=kind)
        if tripped:
            break
    assert tripped == ["text"]
    assert "5 of 5" in answers.describe("text")
    assert "(rare)" in answers.describe("text")
    again = AnswerComparison(RolloutPlan())
    again.restore(json.loads(json.dumps(answers.state())))
    assert again.kinds.state() == answers.kinds.state()
    assert not Rollout().handle(AnswersCompared(1.0, {"text": True}, kind="x" * 500))


def test_what_was_heard_behind_a_saved_state_is_not_counted_twice() -> None:
    """A gateway that finds Redis again takes the state up and hears the events behind it again."""
    answers = AnswerComparison(RolloutPlan())
    saved = json.loads(json.dumps(answers.state()))
    for _ in range(2):
        answers.restore(saved)
        told = [answers.add({"text": True}, kind="tools") for _ in range(3)]
    assert told == [[], [], []]
    assert answers.kinds.known["tools"].pairs == 3


def test_lengths_that_differ_at_one_kind_trip_within_its_pairs() -> None:
    answers = AnswerComparison(RolloutPlan())
    told = [{"text": False}] * 200 + [{"shorter": True}] * KIND_PAIRS
    tripped = [answers.add(one, kind="ends" if "shorter" in one else "") for one in told]
    assert ["shorter"] in tripped


@pytest.mark.parametrize("seed", range(5))
def test_a_sound_standby_is_not_accused_at_any_of_many_kinds(seed: int) -> None:
    draw = random.Random(seed)
    kinds = Kinds({"text": 0.1, "shorter": 0.5}, ALPHA)
    for number in range(4000):
        told = {"text": draw.random() < 0.03}
        if draw.random() < 0.2:
            told["shorter"] = draw.random() < 0.5
        assert kinds.add(f"kind {draw.randrange(60)}", told, number) == []


def test_the_last_step_waits_for_kinds_that_are_asked_now_and_not_for_others() -> None:
    kinds = Kinds({"text": 0.1}, ALPHA)
    kinds.add("once", {"text": False}, 0)
    assert f"1 of {KIND_PAIRS}" in kinds.missing(1)
    for number in range(1, RECENT + 1):
        kinds.add("often", {"text": False}, number)
    assert kinds.missing(RECENT) == ""
    for number in range(KINDS + 10):
        kinds.add(f"kind {number}", {"text": False}, RECENT)
    assert len(kinds.known) == KINDS


def test_odd_questions_have_a_kind() -> None:
    for body in (
        {"messages": [5, None, {"role": ["x"], "content": {"a": 1}}]},
        {"messages": {"a": 1}, "response_format": 5, "tool_choice": {"a": 1}, "model": None},
        {"messages": [{"role": "user", "content": [5, {"type": ["x"]}]}] * 3, "é" * 500: False},
    ):
        assert len(label_of(call(**body))) <= 200
    assert label_of(call(messages=[])) != label_of(call(messages=[], stream=False))


# Other questions' answers


def said(text: str) -> BackendReply:
    return BackendReply(text=text)


def test_a_stock_phrase_and_another_questions_answer_are_seen() -> None:
    canned, phrase = Canned(), "Please try again later, thank you."
    story = [f"the story number {number} tells of a river and a stone" for number in range(9)]
    for number in range(3):
        assert canned.judge(b"%d" % number, said(story[number]), said(story[number])) == {
            "canned": False
        }
    assert canned.judge(b"3", said(story[3]), said(phrase)) == {"canned": False}, "never heard"
    assert canned.judge(b"4", said(story[4]), said(phrase)) == {"canned": True}
    assert canned.judge(b"5", said(story[5]), said(story[1])) == {"canned": True}, "mixed up"
    assert canned.judge(b"1", said(story[1] + "!"), said(story[1])) == {"canned": False}


def test_what_a_model_says_to_many_is_nobodys() -> None:
    canned = Canned()
    good, bad = (json.dumps({"label": name, "reason": "x" * 40}) for name in ("good", "bad"))
    for number in range(4):
        canned.judge(b"%d" % number, said(good), said(good))
    assert canned.judge(b"9", said(bad), said(good)) == {"canned": False}
    assert canned.judge(b"10", said("a longer answer of the primary"), said("yes")) == {}
    sorry = "I'm sorry, I cannot help with that request."
    assert canned.judge(b"11", said("something"), said(sorry)) == {}


# Wishes

AGAINST: list[tuple[dict[str, Any], str, int]] = [
    ({"stop": "river"}, "by the river and", 0),
    ({"stop": ["x", "stone"]}, "a stone", 0),
    ({"max_tokens": 5}, "a", 6),
    ({"max_completion_tokens": 5, "max_tokens": 50}, "a", 6),
]
WITHIN: list[tuple[dict[str, Any], str, int]] = [
    ({"stop": None}, "river", 0), ({"stop": ""}, "river", 0), ({"stop": [5]}, "5", 0),
    ({"stop": "river", "include_stop_str_in_output": True}, "river", 0),
    ({"stop": "river", "min_tokens": 4}, "river", 0), ({"max_tokens": 5, "n": 3}, "a", 15),
    ({"max_tokens": 5}, "a", 5), ({"max_tokens": 5, "best_of": 4}, "a", 20),
    ({"max_tokens": "5"}, "a", 9),
]  # fmt: skip


@pytest.mark.parametrize(("body", "text", "tokens"), AGAINST, ids=str)
def test_answers_against_the_request_are_odd(body: dict[str, Any], text: str, tokens: int) -> None:
    assert whole_answers.disobedience(text, tokens, call(**body))
    parsed = {"choices": [{"message": {"content": text}}], "usage": {"completion_tokens": tokens}}
    read = AnswerReader.of(parsed)
    assert whole_answers.find_disobedience(read, call(**body))
    assert "wishes" not in account_of(read, call(**body)).fields


@pytest.mark.parametrize(("body", "text", "tokens"), WITHIN, ids=str)
def test_answers_within_the_request_are_not(body: dict[str, Any], text: str, tokens: int) -> None:
    assert whole_answers.disobedience(text, tokens, call(**body)) is None


SCHEMA = {"type": "object", "required": ["what"], "properties": {
    "what": {"enum": ["tea", "salt"]}, "grams": {"type": "integer"},
    "tags": {"type": "array", "items": {"type": ["string", "null"]}}}}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "weigh", "parameters": SCHEMA}}
GOOD = ("weigh", '{"what": "tea", "grams": 5.0, "tags": ["a", null], "more": 1}')
WRONG_CALLS: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    ({"tool_choice": "none"}, [GOOD]),
    ({"tool_choice": "required"}, []),
    ({"tool_choice": {"function": {"name": "weigh"}}}, []),
    ({"parallel_tool_calls": False}, [GOOD, GOOD]),
    *(({}, [("weigh", text)]) for text in (
        "", "{}", '{"what": "sand"}', '{"what": "tea", "grams": "5"}', "[]", "5",
        '{"what": "tea", "grams": true}', '{"what": "tea", "tags": ["a", 5]}',
    )),
]  # fmt: skip


@pytest.mark.parametrize(("body", "calls"), WRONG_CALLS, ids=str)
def test_tool_calls_against_the_request_are_seen(
    body: dict[str, Any], calls: list[tuple[str, str]]
) -> None:
    assert whole_answers.misuse(calls, "stop", call(tools=[TOOL], **body))


def test_sound_tool_calls_are_not() -> None:
    asked = call(tools=[TOOL, 5, {"function": 5}], parallel_tool_calls=True)
    assert whole_answers.misuse([GOOD, GOOD], "tool_calls", asked) is None
    assert whole_answers.misuse([("weigh", '{"wh')], "length", asked) is None, "it may be cut"
    assert whole_answers.misuse([], "stop", asked) is None
    assert whole_answers.misuse([("other", "5"), (None, "{")], "stop", asked) is None
    odd = {"function": {"name": "weigh", "parameters": [5, {"required": 5, "enum": 5}]}}
    assert whole_answers.misuse([GOOD], "stop", call(tools=[odd])) is None
    auto = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}
    assert whole_answers.misuse([], "stop", call(tools=[TOOL], tool_choice=auto)) is None
    due = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}
    assert whole_answers.misuse([], "stop", call(tools=[TOOL], tool_choice=due))
    for schema in ({"type": {"what": "string"}}, {"type": "string", "nullable": True}):
        odd = {"function": {"name": "weigh", "parameters": schema}}
        assert whole_answers.misuse([("weigh", "null")], "stop", call(tools=[odd])) is None


def test_calls_are_the_same_whatever_spaces_a_server_writes() -> None:
    ours, theirs = '{"what":"th\u00e9","n":[1]}', '{"what": "th\\u00e9", "n": [1]}'
    one, two = (words_of_calls([("f", text)]) for text in (ours, theirs))
    assert one == two
    assert words_of_calls([("f", '{"what": "t')]) != one
    assert words_of_calls([("f", json.loads(ours))]) != one, "no text, as clients expect"
    items = [[{"type": "function_call", "name": "f", "arguments": a}] for a in (ours, theirs)]
    said = [AnswerReader.of(forms.of_response({"output": one})).words for one in items]
    assert said[0] == said[1] != ""


# Sampling


def test_a_sampled_question_is_repeated_as_it_is() -> None:
    asked = plain(call(temperature=0.9, seed=5, n=3, stream=True, max_tokens=900), sampled=True)
    assert asked.parsed == {
        "model": "m", "temperature": 0.9, "seed": 5, "stream": False, "max_tokens": 900,
    }  # fmt: skip


def test_a_pair_asks_for_as_many_choices_as_the_client() -> None:
    """The greedy question leaves them out, and too few of all answers have several."""

    class Fewer(Shadow):
        async def ask(self, upstream: Any, call: GatewayCall) -> BackendReply | None:
            few = upstream.role == "standby" and call.choices == 2
            return BackendReply(200, "a sound answer", "stop", odd=few)

    primary, standby = (SimpleNamespace(role=one, up=True, name=one) for one in ROLES)
    rollout = Rollout(RolloutPlan(), state="ramping")
    parts: Any = (primary, standby, rollout, GatewayMeters(Metrics()), print, rollout.handle, set())
    shadow = Fewer(ShadowSettings(), *parts)
    shadow.succeeded = lambda role, who: None  # type: ignore[method-assign]
    asked = call(n=2, messages=[{"role": "user", "content": "q"}], temperature=0.9)

    async def pairs() -> None:
        for _ in range(KIND_PAIRS):
            await shadow.pair(asked)

    asyncio.run(pairs())
    assert rollout.state == "rolled_back"
    assert "another shape than was asked for" in rollout.changes[-1].text


def test_a_plain_question_has_no_field_that_a_server_refuses_without_another() -> None:
    search = {"use_beam_search": True, "n": 4, "length_penalty": 1.2, "early_stopping": True}
    asked = plain(call(**search, min_tokens=100, max_tokens=200))
    assert asked.parsed == {"model": "m", "temperature": 0, "max_tokens": 200, "min_tokens": 100}


@pytest.mark.parametrize(("seed", "theirs", "ours", "worse"), [
    (None, "ab", "aa", True), (None, "aa", "ab", False), (7, "aa", "ab", True),
    (None, "ab", "cd", None), (7, "aa", "bb", None), (7, "ab", "aa", False),
])  # fmt: skip
def test_who_repeats_itself_alone_is_told(
    seed: int | None, theirs: str, ours: str, worse: bool | None
) -> None:
    pairs = (theirs[0], theirs[1]), (ours[0], ours[1])
    told = compare_repetitions(*pairs, seeded=seed is not None)
    assert told == ({} if worse is None else {"sampling": worse})


def test_questions_that_nobody_answers_are_not_repeated_for_ever() -> None:
    class Busy(Shadow):
        asked = 0

        async def ask(self, upstream: Any, call: GatewayCall) -> BackendReply | None:
            self.asked += 1
            return BackendReply(text="word") if upstream.role == "primary" else None

    async def talk() -> int:
        primary, standby = (SimpleNamespace(role=one, up=True) for one in ("primary", "standby"))
        plan = RolloutPlan(pair_percent=0.0)
        parts: Any = (primary, standby, Rollout(plan, state="promoted"), None, print, print, set())
        shadow = Busy(ShadowSettings(), *parts)
        shadow.succeeded = lambda role, who: None  # type: ignore[method-assign]
        for _ in range(TRIES + 50):
            shadow.heard(call(messages=[]), Heard(primary, BackendReply(200, "word", "stop", 1.0)))
            while shadow.running:
                await asyncio.sleep(0)
        return shadow.asked

    assert asyncio.run(talk()) == 2 * (KIND_PAIRS + TRIES)


def test_a_question_of_megabytes_is_not_asked_again() -> None:
    primary, standby = (SimpleNamespace(role=one, up=True) for one in ("primary", "standby"))
    parts: Any = (
        primary,
        standby,
        Rollout(RolloutPlan(), state="ramping"),
        None,
        print,
        print,
        set(),
    )
    shadow = Shadow(ShadowSettings(), *parts)
    small, large = call(messages=[]), call(messages=[])
    large.body = b" " * (ASKED_BYTES + 1)
    for due in (shadow.pair_is_due, shadow.repetition_is_due):
        assert due(small)
        assert not due(large)


def test_one_question_of_several_users_has_one_answer() -> None:
    canned, found = Canned(), []
    for number in range(20):
        asked = call(user=f"u{number}", messages=[{"role": "user", "content": "Paris?"}])
        theirs, ours = said("Paris is the capital of France."), said("Paris is France's capital.")
        found.append(canned.judge(asked.body, theirs, ours)["canned"])
    assert not any(found)
