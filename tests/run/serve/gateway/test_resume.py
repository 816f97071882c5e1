"""Which streams may be continued, and how: an allow-list, no list of exceptions."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.run.serve.gateway.calls import GatewayCall
from joymigrate.run.serve.gateway.resume import (
    Diverged,
    continuations,
    encode,
    hindering_field,
    obstacle,
)
from joymigrate.run.serve.gateway.stream import RelayedStream
from joymigrate.run.serve.web.apis import CHAT

BASE = {"model": "m", "messages": [], "stream": True, "temperature": 0, "max_tokens": 20}
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
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"a_field_of_next_year": 1}, {"bad_words": ["x"]}, {"allowed_token_ids": [1]},
]  # fmt: skip


def call() -> GatewayCall:
    return GatewayCall(CHAT, "POST", "/v1/chat/completions", {}, orjson.dumps(BASE), BASE, 0.0)


def broken(**more: Any) -> RelayedStream:
    """A stream that broke after its first words."""
    stream = RelayedStream()
    choice = {"index": 0, "delta": {"content": "a b"}, "finish_reason": None, **more}
    stream.feed(encode({"id": "one", "choices": [choice]}))
    return stream


def ways(more: dict[str, Any]) -> list[str]:
    body = {**BASE, **more}
    call = GatewayCall(CHAT, "POST", "/v1/chat/completions", {}, orjson.dumps(body), body, 0.0)
    sent = broken(token_ids=[5, 6], prompt_token_ids=[1, 2, 3])
    found = [way.way for way in continuations(call, sent, resumes=True)]
    seeded = "seed" in body and body["temperature"]
    assert ("resume" in found) == (not seeded), "another kind of server draws differently"
    return [way for way in found if way != "resume"]


@pytest.mark.parametrize("more", EXACT, ids=str)
def test_fields_that_act_on_each_token_alone_go_on_behind_the_ids(more: dict[str, Any]) -> None:
    assert ways(more) == ["ids", "replay"]


@pytest.mark.parametrize("more", NOT_KNOWN, ids=str)
def test_every_other_field_is_asked_again_and_compared(more: dict[str, Any]) -> None:
    assert ways(more) == ["replay"]


# The fields of chat and completion requests of vLLM 0.32.0 and SGLang 0.5.23
# (`python -m benchmarks.engine_fields` prints those of the files that it is given).
FIELDS = [
    "allowed_token_ids", "bad_words", "best_of", "bootstrap_host", "bootstrap_port",
    "bootstrap_room", "cache_salt", "continue_final_message", "custom_labels",
    "custom_logit_processor", "custom_params", "data_parallel_rank", "disagg_prefill_dp_rank",
    "documents", "ebnf",
    "ec_transfer_params", "echo", "extra_key", "frequency_penalty", "images_config",
    "include_reasoning", "include_stop_str_in_output", "input_ids", "json_schema",
    "kv_transfer_params", "length_penalty", "logprob_token_ids", "logprobs", "lora_path",
    "max_dynamic_patch", "media_io_kwargs", "min_dynamic_patch", "min_tokens", "mm_payload",
    "mm_processor_kwargs", "n", "no_stop_trim", "presence_penalty", "priority", "prompt_embeds",
    "prompt_logprobs", "reasoning_effort", "regex", "repetition_detection", "repetition_penalty",
    "request_id", "response_format", "return_cached_tokens_details",
    "return_flat_raw_output_top_logprobs", "return_flat_raw_top_logprobs_b64",
    "return_hidden_states", "return_input_ids_in_sglext", "return_meta_info", "return_mm_kwargs",
    "return_output_ids_in_sglext", "return_prompt_text", "return_prompt_token_ids",
    "return_routed_experts", "return_sampling_mask", "return_spec_tokens_details",
    "return_token_offsets", "return_tokens_as_token_ids", "rid", "routed_dp_rank",
    "routed_experts_prompt_start",
    "routed_experts_start_len", "sampling_logprobs_mode", "seed", "separate_reasoning",
    "session_id", "session_params", "spaces_between_special_tokens", "stop", "stop_regex",
    "stream_interval", "stream_reasoning", "structured_outputs", "suffix", "task", "thinking",
    "thinking_token_budget", "tools", "top_logprobs", "truncate_prompt_tokens", "truncation_side",
    "use_audio_in_video", "use_beam_search", "video_config", "vllm_xargs", "watermark",
    "watermarking",
]  # fmt: skip
NOTHING = object()
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab"), inner, max_size=2),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, min_size=1, max_size=3))
def test_no_field_of_other_engines_goes_on_behind_ids_but_with_a_value_that_means_nothing(
    more: dict[str, Any],
) -> None:
    body = {**BASE, "temperature": 0.5, **more}
    harmless = {"best_of": 1, "n": 1, "echo": False, "min_tokens": 0, "presence_penalty": 0,
                "frequency_penalty": 0, "repetition_penalty": 1, "length_penalty": 1,
                "logprobs": False, "top_logprobs": 0, "use_beam_search": False,
                "include_stop_str_in_output": False}  # fmt: skip
    means = [
        name
        for name, value in more.items()
        if value is not None
        and value != harmless.get(name, NOTHING)
        and not (name == "stop" and value in ([], ""))
        and not (name == "tools" and value == [])
    ]
    assert (hindering_field(body) is not None) == bool(means)


@pytest.mark.parametrize("place", ["event", "choice", "delta"])
def test_what_a_replay_cannot_compare_ends_visibly(place: str) -> None:
    way = continuations(call(), broken())[-1]
    event: dict[str, Any] = {
        "id": "x", "provider": "p", "choices": [{"index": 0, "delta": {"content": "a"}}],
    }  # fmt: skip
    assert way.convert(event) is None, "the client has it, and a label is no content"
    choice = {"index": 0, "delta": {"content": " b"}}
    part = {"event": event, "choice": choice, "delta": choice["delta"]}[place]
    part["hidden_states"] = [[0.5, 1.0]]
    event["choices"] = [choice]
    with pytest.raises(Diverged, match="hidden_states"):
        way.convert(event)


def test_behind_the_break_everything_is_passed_on() -> None:
    way = continuations(call(), broken())[-1]
    said = {"index": 0, "delta": {"content": "a b"}}
    assert way.convert({"id": "x", "choices": [said]}) is None
    more = {"index": 0, "delta": {"content": " c"}, "hidden_states": [[0.5]]}
    assert way.convert({"id": "x", "choices": [more]}) == {"id": "one", "choices": [more]}


def test_a_role_that_the_client_has_is_not_said_again() -> None:
    sent = RelayedStream()
    opening = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    event = {"object": "chat.completion.chunk", "choices": [opening]}
    sent.feed(encode(event))
    way = continuations(call(), sent)[-1]
    assert way.convert(event) is None
    said = {"index": 0, "delta": {"role": "assistant", "content": "a"}}
    converted = way.convert({**event, "choices": [said]})
    assert converted is not None
    assert converted["choices"][0]["delta"] == {"content": "a"}


def calling(*calls: tuple[str, str]) -> RelayedStream:
    """A stream of tool calls that broke."""
    stream = RelayedStream()
    for index, (name, arguments) in enumerate(calls):
        piece = {"index": index, "id": f"call_{index}", "function": {"name": name, "arguments": ""}}
        for one in (piece, {"index": index, "function": {"arguments": arguments}}):
            choice = {"index": 0, "delta": {"tool_calls": [one]}, "finish_reason": None}
            event = {"id": "one", "choices": [choice]}
            stream.feed(b"data: " + json.dumps(event).encode() + b"\n\n")
    return stream


def event_of(*pieces: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    delta = {"tool_calls": list(pieces)} if pieces else {}
    return {"id": "two", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def test_tool_calls_of_another_server_are_compared_and_go_on_where_they_stopped() -> None:
    stream = calling(("weigh", '{"a": 1}'), ("lift", '{"b"'))
    (way,) = continuations(call(), stream)
    opening = {"index": 0, "id": "new", "function": {"name": "weigh", "arguments": '{"a": 1}'}}
    assert way.convert(event_of(opening)) is None
    second = {"index": 1, "id": "other", "function": {"name": "lift", "arguments": '{"b": 2}'}}
    third = {"index": 2, "id": "third", "function": {"name": "drop", "arguments": ""}}
    assert way.convert(event_of(second, third)) == {
        **event_of({"index": 1, "function": {"arguments": ": 2}"}}, third), "id": "one",
    }  # fmt: skip
    assert way.convert(event_of(finish="tool_calls")) is not None


def test_a_custom_tools_input_goes_on_where_it_stopped() -> None:
    begun = {"index": 0, "id": "a", "custom": {"name": "run", "input": "print("}}
    stream = RelayedStream()
    stream.feed(b"data: " + json.dumps(event_of(begun)).encode() + b"\n\n")
    (way,) = continuations(call(), stream)
    again = {"index": 0, "id": "b", "custom": {"name": "run", "input": "print('tea"}}
    rest = {"index": 0, "custom": {"input": "'tea"}}
    assert way.convert(event_of(again)) == {**event_of(rest), "id": "two"}
    assert way.convert(event_of(finish="tool_calls")) is not None


@pytest.mark.parametrize(
    "piece",
    [
        {"index": 0, "id": "x", "custom": {"name": "weigh", "input": '{"b'}},
        {"index": 0, "id": "x", "function": {"name": "weigh", "arguments": '{"b'}},
        {"index": 0, "id": "x", "function": {"name": "lift", "arguments": ""}},
    ],
)
def test_other_tool_calls_end_visibly(piece: dict[str, Any]) -> None:
    (way,) = continuations(call(), calling(("weigh", '{"a"')))
    with pytest.raises(Diverged):
        way.convert(event_of(piece))


def test_calls_that_end_too_early_and_odd_ones_are_seen() -> None:
    (way,) = continuations(call(), calling(("weigh", '{"a"')))
    with pytest.raises(Diverged):
        way.convert(event_of(finish="tool_calls"))
    (way,) = continuations(call(), calling(("now", "")))
    with pytest.raises(Diverged):  # a call without arguments is missed, too
        way.convert(event_of(finish="stop"))
    (way,) = continuations(call(), calling(("now", "")))
    with pytest.raises(Diverged):
        way.convert({"choices": [{"index": 0, "delta": {"content": "It is noon."}}]})
    odd = RelayedStream()
    choice = {"index": 0, "delta": {"tool_calls": [{"function": {"name": "f"}}]}}
    odd.feed(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
    assert obstacle(call(), odd) is not None
