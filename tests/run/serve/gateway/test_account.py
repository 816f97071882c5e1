"""What answers say beside their text: counts, names, log probabilities, fields, vectors."""

from __future__ import annotations

import asyncio
import base64
import copy
import struct
from dataclasses import replace
from typing import Any

import pytest

from joymigrate.run.serve.evidence.answers import AnswerComparison, BackendReply, compare
from joymigrate.run.serve.evidence.events import RolloutPlan
from joymigrate.run.serve.gateway import redis_rollout
from joymigrate.run.serve.gateway.account import account_of, reply_of
from joymigrate.run.serve.gateway.calls import GatewayCall
from joymigrate.run.serve.gateway.kinds import label_of
from joymigrate.run.serve.gateway.reader import AnswerReader
from joymigrate.run.serve.gateway.resume import encode
from joymigrate.run.serve.gateway.shadow_calls import plain, repeating
from joymigrate.run.serve.gateway.stream import RelayedStream
from joymigrate.run.serve.web import apis, forms
from joymigrate.run.serve.web.apis import CHAT, EMBEDDINGS, RESPONSES, TEXT, ApiRoute
from tests.run.serve.gateway.conftest import Bench, Table

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def call(kind: ApiRoute = CHAT, **body: Any) -> GatewayCall:
    path = {CHAT: "/v1/chat/completions", TEXT: "/v1/completions", EMBEDDINGS: "/v1/embeddings"}
    return GatewayCall(kind, "POST", path.get(kind, "/"), {}, b"{}", {"model": "m", **body}, 0.0)


ASKED = call(logprobs=True, top_logprobs=1, tools=[])


def answer() -> dict[str, Any]:
    top = [{"token": "hi", "logprob": -0.5}]
    scored = {"content": [{"token": "hi", "logprob": -0.5, "top_logprobs": top}]}
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    message = {"role": "assistant", "content": "hi", "tool_calls": calls, "reasoning": "hm"}
    choice = {"index": 0, "message": message, "logprobs": scored, "finish_reason": "stop"}
    return {"id": "x", "object": "o", "created": 1, "model": "m", "choices": [choice],
            "usage": dict(USAGE)}  # fmt: skip


def said(parsed: dict[str, Any], asked: GatewayCall = ASKED) -> BackendReply:
    return reply_of(AnswerReader.of(parsed), asked, 0.0)


def first(parsed: dict[str, Any]) -> dict[str, Any]:
    return parsed["choices"][0]


def test_equal_answers_lack_nothing() -> None:
    told = compare(said(answer()), said(answer()), RolloutPlan(), greedy=True)
    assert not any(told.values())
    assert {"usage", "logprobs", "top_logprobs", "call_ids", "role", "name", "counts"} <= set(told)


@pytest.mark.parametrize(
    ("change", "aspect"),
    [
        (lambda a: a.pop("usage"), "usage"),
        (lambda a: a["usage"].update(prompt_tokens=0, total_tokens=2), "usage"),
        (lambda a: a["usage"].update(total_tokens=4), "usage"),
        (lambda a: a["usage"].update(completion_tokens=0, total_tokens=3), "usage"),
        (lambda a: a["usage"].update(prompt_tokens=4, total_tokens=6), "counts"),
        (lambda a: a["usage"].update(completion_tokens=9, total_tokens=12), "counts"),
        (lambda a: a.update(model="other"), "name"),
        (lambda a: a.update(model=None), "model"),
        (lambda a: a.update(id=""), "id"),
        (lambda a: first(a).pop("logprobs"), "logprobs"),
        (lambda a: first(a)["logprobs"].update(content=[]), "logprobs"),
        (lambda a: first(a)["logprobs"]["content"][0].update(logprob=None), "logprobs"),
        (lambda a: first(a)["logprobs"]["content"][0].update(logprob=0.5), "logprobs"),
        (lambda a: first(a)["logprobs"]["content"][0].update(logprob=-3.0), "scores"),
        (lambda a: first(a)["logprobs"]["content"][0].update(top_logprobs=[]), "top_logprobs"),
        (lambda a: first(a)["message"]["tool_calls"][0].pop("id"), "call_ids"),
        (lambda a: first(a)["message"]["tool_calls"].append({"id": "a"}), "call_ids"),
        (lambda a: first(a)["message"].update(role="user"), "role"),
        (lambda a: first(a).update(index=1), "index"),
        (lambda a: first(a).update(finish_reason="length"), "finish"),
        (
            lambda a: first(a)["message"].update(reasoning=None, content="hmhi"),
            "reasoning",
        ),
    ],
)
def test_what_a_standby_says_otherwise_is_an_aspect(change: Any, aspect: str) -> None:
    wrong = answer()
    change(wrong)
    assert compare(said(answer()), said(wrong), RolloutPlan(), greedy=True)[aspect] is True
    # The other way round nothing is lacking, and a plan may pass over it.
    turned = compare(said(wrong), said(answer()), RolloutPlan(), greedy=True)
    assert turned.get(aspect) is not True or aspect in ("counts", "scores", "finish")
    tolerant = AnswerComparison(RolloutPlan(unjudged=(aspect,)))
    assert not any(aspect in tolerant.add({aspect: True}) for _ in range(50))


def test_an_answer_may_take_its_name_from_the_primary_or_from_the_request() -> None:
    own = {**answer(), "model": "m-v1"}
    assert compare(said(own), said(answer()), RolloutPlan(), greedy=True)["name"] is False
    assert compare(said(own), said(own), RolloutPlan(), greedy=True)["name"] is False


def test_a_stream_makes_the_answer_that_it_is() -> None:
    def event(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {**answer(), "usage": None, "choices": [{"index": 0, "delta": delta, **more}]}

    call_begun = {"index": 0, **first(answer())["message"]["tool_calls"][0]}
    events = [
        event({"role": "assistant", "content": ""}),
        event({"reasoning": "hm"}),
        event({"content": "hi"}, logprobs=first(answer())["logprobs"]),
        event({"tool_calls": [call_begun]}),
        event({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}),
        event({}, finish_reason="stop"),
        {**answer(), "choices": []},
    ]
    streamed = replace(ASKED, parsed={**(ASKED.parsed or {}), "stream": True})
    stream = RelayedStream(CHAT.form, keep=True)
    stream.feed(b"".join(map(encode, events)))
    account = account_of(stream, streamed)
    assert account_of(AnswerReader.of(answer()), ASKED).fields - account.fields == {
        "usage"
    }  # it was not asked for
    assert account.logprobs == (("hi", -0.5),)


def test_a_repeated_prompt_is_no_part_of_the_answer() -> None:
    asked = call(TEXT, prompt="a long prompt that is repeated as it stands", echo=True)

    def text(words: str) -> BackendReply:
        choice = {"index": 0, "text": words, "finish_reason": "stop"}
        return said({**answer(), "choices": [choice]}, asked)

    prompt = (asked.parsed or {})["prompt"]
    told = compare(text(prompt + " one"), text(prompt + " other"), RolloutPlan(), greedy=True)
    assert told["text"] is True
    told = compare(text(prompt + " one"), text(" one"), RolloutPlan(), greedy=True)
    assert told["echo"] is True
    assert told["text"] is False


def vectors(*rows: Any) -> BackendReply:
    parsed = {"model": "m", "data": [{"index": 0, "embedding": row} for row in rows]}
    return said(parsed, call(EMBEDDINGS))


def test_vectors_are_compared_by_number_size_and_direction() -> None:
    one, two = [1.0, 0.0, 0.1], [0.0, 1.0, 0.1]
    right = vectors(one, two)
    packed = base64.b64encode(struct.pack("<3f", *two)).decode()
    for ours, differs in (
        (right, False),
        (vectors([2.0, 0.0, 0.21], two), False),
        (vectors(one, packed), False),
        (vectors(one, one), True),
        (vectors(one), True),
        (vectors(one[:2], two[:2]), True),
        (vectors([0.0] * 3, two), True),
        (vectors(one, "no base64"), True),
    ):
        assert compare(right, ours, RolloutPlan(), greedy=True)["text"] is differs
    zeros = vectors([0.0] * 3)
    assert compare(zeros, zeros, RolloutPlan(), greedy=True)["text"] is False


@pytest.mark.parametrize(("rows", "name"), [("data", "score"), ("results", "relevance_score")])
def test_scores_and_reranked_documents_are_ranks(rows: str, name: str) -> None:
    def scores(*values: float) -> BackendReply:
        listed = [{"index": place, name: value} for place, value in enumerate(values)]
        return said({rows: sorted(listed, key=lambda row: -row[name])}, call(EMBEDDINGS))

    right = scores(0.9, 0.1, 0.5, 0.2)
    assert compare(right, scores(0.8, 0.2, 0.6, 0.3), RolloutPlan(), greedy=True)["text"] is False
    assert compare(right, scores(0.1, 0.9, 0.5, 0.8), RolloutPlan(), greedy=True)["text"] is True
    assert "text" not in compare(scores(0.9), scores(0.1), RolloutPlan(), greedy=True)


def test_the_best_few_of_two_rerankers_are_compared_by_document() -> None:
    def best(**scores: float) -> BackendReply:
        rows = [{"index": int(name[1:]), "relevance_score": one} for name, one in scores.items()]
        return said({"results": rows}, call(EMBEDDINGS))

    right = best(d4=0.9, d7=0.6, d0=0.5)
    for ours, otherwise in (
        (best(d4=0.8, d7=0.7, d8=0.5), False),
        (best(d1=0.9, d2=0.6, d3=0.5), True),
        (best(d4=0.9, d7=0.6), True),
    ):
        assert compare(right, ours, RolloutPlan(), greedy=True)["text"] is otherwise
    assert compare(best(d1=0.9), best(d2=0.9), RolloutPlan(), greedy=True)["text"] is True


def test_a_mirrored_answer_is_compared_without_the_prompt_on_both_sides() -> None:
    prompt = "Once upon a time there was a king who"
    asked = call(TEXT, prompt=prompt, echo=True)

    def heard(text: str) -> BackendReply:
        return BackendReply(200, text, "stop", account=repeating(text, asked))

    def answered(text: str) -> BackendReply:
        choice = {"index": 0, "text": text, "finish_reason": "stop"}
        return said({**answer(), "choices": [choice]}, asked)

    theirs = heard(f"{prompt} lived.")
    told = compare(theirs, answered(f"{prompt} lived."), RolloutPlan(), greedy=True)
    assert told["echo"] is False
    assert not any(told.values())
    assert compare(theirs, answered(f"{prompt} died."), RolloutPlan(), greedy=True)["text"] is True
    assert compare(theirs, answered(" lived."), RolloutPlan(), greedy=True)["echo"] is True


@pytest.mark.parametrize(
    "change",
    [
        lambda a: first(a)["logprobs"].update(content=["hi"]),
        lambda a: first(a)["logprobs"].update(content=[5]),
        lambda a: first(a)["message"].update(tool_calls=5),
    ],
)
def test_fields_of_a_strange_shape_are_not_there(change: Any) -> None:
    wrong = answer()
    change(wrong)
    told = compare(said(answer()), said(wrong), RolloutPlan(), greedy=True)
    assert told["logprobs"] or told["call_ids"]


def test_a_question_that_comes_whole_has_no_options_of_a_stream() -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for asked in (
        call(messages=[], tools=[{}], **options),
        call(RESPONSES, input="q", tools=[{}], max_output_tokens="9", **options),
    ):
        body = plain(asked).parsed or {}
        assert body["stream"] is False
        assert "stream_options" not in body
    kept = plain(call(messages=[], **options)).parsed or {}
    assert kept["stream_options"] == {"include_usage": True}


def test_responses_are_asked_greedily_and_read() -> None:
    asked = plain(call(RESPONSES, input="q", stream=True, max_output_tokens=1000))
    assert (asked.parsed or {}) == {
        "model": "m", "input": "q", "stream": True, "temperature": 0, "max_output_tokens": 1000,
    }  # fmt: skip
    item = {"type": "message", "content": [{"type": "output_text", "text": "hello"}, None]}
    odd = forms.of_response({"output": [{"content": 5}, {"content": {"a": 1}}]})
    assert AnswerReader.of(odd).words == ""
    called = forms.of_response({"output": [item, {"type": "function_call", "name": "f"}, 7]})
    assert AnswerReader.of(called).words == 'hello[["f"],[["f",null]]]'


def test_kinds_of_questions_are_told_apart_by_what_is_asked() -> None:
    kinds = {
        label_of(call(**body))
        for body in (
            {"messages": [{"role": "user", "content": "q"}]},
            {"messages": [{"role": "user", "content": "another"}]},
            {"messages": [{"role": "user", "content": "q"}], "stream": True},
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]},
            {"messages": "none", "tools": []},
        )
    }
    assert len(kinds) == 5


def test_what_changes_a_server_is_not_asked_again() -> None:
    def orders(path: str) -> bool:
        row = apis.find(path.partition("?")[0]) or apis.OTHER
        return GatewayCall(row, "POST", path, {}, b"{}", None, 0.0).orders

    for path in (
        "/v1/unload_lora_adapter", "/sleep?level=1", "/v1/fine_tuning/jobs", "/v1/files",
        "/v2/repository/models/m/unload", "/v1/responses/resp_1/cancel", "/flush_cache",
        "/v2/models/m/trace/setting",
    ):  # fmt: skip
        assert orders(path), path
    for path in (
        "/v1/chat/completions", "/v1/rerank", "/v1/score", "/v1/embeddings", "/v1/responses",
        "/v2/models/files/versions/1/infer", "/v2/models/m/generate_stream", "/tokenize",
        "/v1/rank", "/v1/completions",
    ):  # fmt: skip
        assert not orders(path), path
    for more, changes in (
        ({"conversation": "c1"}, True),
        ({"background": True}, True),
        ({}, False),
    ):
        asked = {"input": "q", **more}
        assert (
            GatewayCall(RESPONSES, "POST", "/v1/responses", {}, b"", asked, 0.0).orders == changes
        )


def test_a_plan_of_an_older_gateway_is_completed() -> None:
    old = {"primary": "gpu", "plan": {"limit": 0.01, "burst_cap": False, "steps": [1, 100]}}
    plan = redis_rollout.complete_identity(copy.deepcopy(old))["plan"]
    assert plan["limit"] == 0.01
    assert plan["unjudged"] == []
    assert plan["steps"] == [1, 100]
    assert "burst_cap" not in plan


@pytest.mark.parametrize(
    ("kind", "state", "why"),
    [
        ("zero_usage", "rolled_back", "count no tokens"),
        ("no_usage", "rolled_back", "count no tokens"),
        ("no_logprobs", "rolled_back", "leave out log probabilities"),
        ("flat_logprobs", "paused", "log probabilities that are far"),
        ("other_name", "paused", "name another model"),
        ("no_role", "rolled_back", "the assistant's"),
        ("other_finish", "paused", "another reason"),
    ],
)
def test_a_standby_that_is_right_but_for_one_thing_is_not_promoted(
    table: Table, kind: str, state: str, why: str
) -> None:
    async def scenario(bench: Bench) -> None:
        for wave in range(80):
            asked = (
                bench.ask(f"{wave} {i}", model="fake", stream=i % 2 == 0, logprobs=True)
                for i in range(8)
            )
            await asyncio.gather(*asked)
            if bench.gateway.rollout.state in ("promoted", "rolled_back", "paused"):
                break
        assert bench.gateway.rollout.state == state
        assert why in bench.gateway.rollout.changes[-1].text

    plan = {"min_step_pairs": 10, "min_step_seconds": 0.02, "limit": 0.02, "start": "auto",
            "steps": [20, 100], "max_slowdown": 0}  # fmt: skip
    table.run(scenario, npu={kind: 1.0}, rollout=plan)


def test_what_few_clients_ask_for_is_compared_all_the_same(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(400):
            rare = {"logprobs": True} if number % 40 == 0 else {}
            await bench.ask(f"{number}", stream=False, **rare)
            while bench.gateway.shadow.running:
                await asyncio.sleep(0.001)
            if bench.gateway.rollout.state == "rolled_back":
                break
        assert "log probabilities" in bench.gateway.rollout.changes[-1].text
        assert bench.gateway.shadow.compared < 150

    plan = {"min_step_pairs": 10, "min_step_seconds": 3600, "steps": [20, 100]}
    table.run(scenario, npu={"no_logprobs": 1.0}, rollout=plan)
