"""Which streams may be continued behind their token ids: an allow-list, no list of exceptions."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from joymigrate.run.serve.gateway.calls import CHAT, Call
from joymigrate.run.serve.gateway.resume import CONTENT, Sent, continuations

BASE = {"model": "m", "messages": [], "stream": True, "temperature": 0, "max_tokens": 20}
SENT = Sent({}, {CONTENT: "a b"}, [5, 6], [1, 2, 3], [5, 6])
EXACT: list[dict[str, Any]] = [
    {}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.1}, {"logit_bias": {"5": -3}}, {"seed": 3},
    {"ignore_eos": True}, {"stop_token_ids": [7]}, {"presence_penalty": 0}, {"stop": None},
    {"n": 1}, {"response_format": {"type": "text"}}, {"user": "x"}, {"tools": []},
]  # fmt: skip
NOT_KNOWN: list[dict[str, Any]] = [
    {"presence_penalty": 0.5}, {"frequency_penalty": 1}, {"repetition_penalty": 1.2},
    {"min_tokens": 5}, {"seed": 3, "temperature": 1}, {"stop": ["ab"]}, {"stop": "x"},
    {"truncate_prompt_tokens": 2}, {"guided_regex": "a+"}, {"guided_choice": ["a"]},
    {"guided_grammar": "x"}, {"guided_json": {}, }, {"structural_tag": {}},
    {"structured_outputs": {"regex": "a"}}, {"response_format": {"type": "json_object"}},
    {"tools": [{"type": "function"}]}, {"include_stop_str_in_output": True},
    {"a_field_of_next_year": 1}, {"bad_words": ["x"]}, {"allowed_token_ids": [1]},
]  # fmt: skip


def ways(more: dict[str, Any]) -> list[str]:
    body = {**BASE, **more}
    call = Call(CHAT, "POST", "/v1/chat/completions", {}, orjson.dumps(body), body, 0.0)
    found = [way.way for way in continuations(call, SENT, resumes=True)]
    seeded = "seed" in body and body["temperature"]
    assert ("resume" in found) == (not seeded), "another kind of server draws differently"
    return [way for way in found if way != "resume"]


@pytest.mark.parametrize("more", EXACT, ids=str)
def test_fields_that_act_on_each_token_alone_go_on_behind_the_ids(more: dict[str, Any]) -> None:
    assert ways(more) == ["ids", "replay"]


@pytest.mark.parametrize("more", NOT_KNOWN, ids=str)
def test_every_other_field_is_asked_again_and_compared(more: dict[str, Any]) -> None:
    assert ways(more) == ["replay"]
