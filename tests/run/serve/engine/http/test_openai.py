"""The OpenAI API with the official client: what it sends is taken, what it reads is there."""

from __future__ import annotations

import json
from typing import Any

import pytest

openai = pytest.importorskip("openai", reason="pip install 'joymigrate[dev]'")

ASK = {"model": "tiny", "max_tokens": 12, "temperature": 0.0}
SAY: list[dict[str, Any]] = [{"role": "user", "content": "Hello world"}]


def complete(client: Any, prompt: Any = "Hello world", **more: Any) -> Any:
    return client.completions.create(**{**ASK, "prompt": prompt, **more})


def chat(client: Any, **more: Any) -> Any:
    unending = {"1": -100}  # a random model may end at any token
    return client.chat.completions.create(
        **{**ASK, "messages": SAY, "logit_bias": unending, **more}
    )


BARE = {"logit_bias": {}}  # for a search, with which it does not go


# Models


def test_models_are_listed(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "alias"]


def test_one_model_is_described(client: Any) -> None:
    found = client.models.retrieve("tiny")
    assert found.object == "model"
    assert found.max_model_len == 512


def test_an_unknown_model_is_not_found(client: Any) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-9")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("call", [complete, chat])
def test_a_request_for_another_model_is_not_found(client: Any, call: Any) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        call(client, model="gpt-9")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("call", [complete, chat])
def test_an_alias_is_the_same_model(client: Any, call: Any) -> None:
    assert call(client, model="alias").model == "alias"


# Completions


def test_a_completion_has_text_reason_and_usage(client: Any) -> None:
    found = complete(client)
    assert found.object == "text_completion"
    assert found.choices[0].finish_reason == "length"
    assert found.choices[0].text
    assert found.usage.completion_tokens == 12
    assert found.usage.total_tokens == found.usage.prompt_tokens + 12


def test_greedy_text_repeats_itself(client: Any) -> None:
    assert complete(client).choices[0].text == complete(client).choices[0].text


def test_a_stream_says_the_same_as_the_whole(client: Any) -> None:
    whole = complete(client, max_tokens=40).choices[0]
    events = list(complete(client, max_tokens=40, stream=True))
    assert "".join(event.choices[0].text for event in events) == whole.text
    assert [e.choices[0].finish_reason for e in events if e.choices[0].finish_reason] == ["length"]


def test_usage_comes_last_in_a_stream_when_asked_for(client: Any) -> None:
    events = list(complete(client, stream=True, stream_options={"include_usage": True}))
    assert events[-1].choices == []
    assert events[-1].usage.completion_tokens == 12
    assert all(event.usage is None for event in events[:-1])


def test_usage_comes_with_every_event_when_asked_for(client: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = list(complete(client, stream=True, stream_options=options))
    counts = [event.usage.completion_tokens for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 12


def test_several_prompts_keep_their_order(client: Any) -> None:
    alone = [complete(client, prompt).choices[0].text for prompt in ("Hello", "world", "tokens")]
    found = complete(client, ["Hello", "world", "tokens"])
    assert [choice.text for choice in found.choices] == alone
    assert [choice.index for choice in found.choices] == [0, 1, 2]


def test_token_ids_are_a_prompt(client: Any, server: Any) -> None:
    ids = server.service.words.encode("Hello world")
    assert complete(client, ids).choices[0].text == complete(client).choices[0].text


def test_lists_of_token_ids_are_prompts(client: Any, server: Any) -> None:
    ids = server.service.words.encode("Hello world")
    found = complete(client, [ids, ids[:1]])
    assert [c.text for c in found.choices] == [
        complete(client, ids).choices[0].text,
        complete(client, ids[:1]).choices[0].text,
    ]


def test_several_choices_of_several_prompts_are_numbered(client: Any) -> None:
    found = complete(client, ["Hello", "world"], n=3, temperature=1.0, seed=5)
    assert [choice.index for choice in found.choices] == list(range(6))


def test_the_default_length_is_sixteen(client: Any) -> None:
    found = client.completions.create(
        model="tiny", prompt="Hello", temperature=0, extra_body={"ignore_eos": True}
    )
    assert found.usage.completion_tokens == 16


def test_an_explicit_null_lifts_the_default(server: Any) -> None:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": None, "temperature": 0}
    status, _, raw = server.post("/v1/completions", {**body, "ignore_eos": True})
    assert status == 200
    used = json.loads(raw)["usage"]
    assert used["total_tokens"] == 512


def test_echo_repeats_the_prompt(client: Any) -> None:
    assert complete(client, echo=True).choices[0].text.startswith("Hello world")


def test_echo_without_tokens_scores_the_prompt(client: Any, server: Any) -> None:
    ids = server.service.words.encode("Hello world, tokens")
    found = complete(client, "Hello world, tokens", echo=True, max_tokens=0, logprobs=1)
    numbers = found.choices[0].logprobs
    assert found.choices[0].text == "Hello world, tokens"
    assert len(numbers.tokens) == len(ids)
    assert numbers.token_logprobs[0] is None
    assert all(value <= 0 for value in numbers.token_logprobs[1:])
    assert found.usage.completion_tokens == 0


def test_scores_of_a_prompt_are_those_of_transformers(
    client: Any, server: Any, folder: Any
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    ids = server.service.words.encode("Hello world, tokens")
    found = complete(client, ids, echo=True, max_tokens=0, logprobs=0).choices[0].logprobs
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        rows = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = [float(rows[i, token]) for i, token in enumerate(ids[1:])]
    # Same float32 sums in another order: a few units in the fifth digit.
    assert found.token_logprobs[1:] == pytest.approx(expected, abs=1e-3)


def test_logprobs_go_with_the_text(client: Any) -> None:
    choice = complete(client, logprobs=3).choices[0]
    numbers = choice.logprobs
    assert len(numbers.tokens) == len(numbers.token_logprobs) == 12
    assert all(len(top) >= 3 for top in numbers.top_logprobs)
    for token, value, top in zip(
        numbers.tokens, numbers.token_logprobs, numbers.top_logprobs, strict=True
    ):
        assert max(top.values()) == pytest.approx(value)
        assert token in top


def test_logprobs_stream_like_the_whole(client: Any) -> None:
    whole = complete(client, logprobs=1).choices[0].logprobs
    events = list(complete(client, logprobs=1, stream=True))
    streamed = [t for e in events if e.choices[0].logprobs for t in e.choices[0].logprobs.tokens]
    offsets = [
        t for e in events if e.choices[0].logprobs for t in e.choices[0].logprobs.text_offset
    ]
    assert streamed == whole.tokens
    assert offsets == whole.text_offset


def test_a_seed_repeats_itself(client: Any) -> None:
    one, same, other = (
        complete(client, temperature=1.0, seed=seed, max_tokens=24).choices[0].text
        for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def test_a_stop_string_ends_the_text_before_itself(client: Any) -> None:
    text = complete(client, max_tokens=30).choices[0].text
    stop = text[6:9]
    found = complete(client, max_tokens=30, stop=[stop]).choices[0]
    assert found.text == text[: text.index(stop)]
    assert found.finish_reason == "stop"
    assert found.stop_reason == stop


def test_a_stop_string_may_be_kept(client: Any) -> None:
    text = complete(client, max_tokens=30).choices[0].text
    found = complete(
        client, max_tokens=30, stop=text[6:9], extra_body={"include_stop_str_in_output": True}
    )
    assert found.choices[0].text.endswith(text[6:9])


def test_a_stop_string_never_shows_in_a_stream(client: Any) -> None:
    text = complete(client, max_tokens=30).choices[0].text
    stop = text[6:9]
    events = complete(client, max_tokens=30, stop=stop, stream=True)
    assert "".join(event.choices[0].text for event in events) == text[: text.index(stop)]


def test_a_stop_token_ends_the_text(client: Any) -> None:
    ids = complete(client, extra_body={"return_token_ids": True}).choices[0].token_ids
    found = complete(client, extra_body={"stop_token_ids": [ids[4]], "return_token_ids": True})
    assert found.choices[0].finish_reason == "stop"
    assert found.choices[0].token_ids == ids[: ids.index(ids[4]) + 1]


def test_logit_bias_forces_a_token(client: Any, server: Any) -> None:
    (token,) = server.service.words.encode("a")
    found = complete(client, logit_bias={str(token): 100}, max_tokens=4)
    assert found.choices[0].text == "aaaa"


def test_logit_bias_forbids_a_token(client: Any) -> None:
    first = complete(client, extra_body={"return_token_ids": True}).choices[0].token_ids[0]
    found = complete(client, logit_bias={str(first): -100}, extra_body={"return_token_ids": True})
    assert first not in found.choices[0].token_ids


def test_penalties_change_the_text(client: Any) -> None:
    plain = complete(client, max_tokens=60).choices[0].text
    assert complete(client, max_tokens=60, frequency_penalty=2.0).choices[0].text != plain


def test_min_tokens_keeps_the_end_away(client: Any) -> None:
    more = {"min_tokens": 8}
    found = complete(client, logit_bias={"1": 100}, extra_body=more)
    assert found.usage.completion_tokens == 9
    assert complete(client, logit_bias={"1": 100}).usage.completion_tokens == 1


def test_ignore_eos_goes_on(client: Any) -> None:
    found = complete(client, logit_bias={"1": 100}, extra_body={"ignore_eos": True})
    assert found.usage.completion_tokens == 12


def test_top_k_of_one_is_greedy(client: Any) -> None:
    found = complete(client, temperature=2.0, extra_body={"top_k": 1})
    assert found.choices[0].text == complete(client).choices[0].text


def test_min_p_of_one_is_greedy(client: Any) -> None:
    found = complete(client, temperature=1.0, extra_body={"min_p": 1.0})
    assert found.choices[0].text == complete(client).choices[0].text


def test_top_p_of_zero_is_greedy(client: Any) -> None:
    assert (
        complete(client, temperature=2.0, top_p=0).choices[0].text
        == complete(client).choices[0].text
    )


def test_returned_ids_continue_exactly(client: Any) -> None:
    extra = {"return_token_ids": True}
    whole = complete(client, max_tokens=30, extra_body=extra).choices[0]
    half = complete(client, max_tokens=13, extra_body=extra).choices[0]
    rest = complete(
        client, half.prompt_token_ids + half.token_ids, max_tokens=17, extra_body=extra
    ).choices[0]
    assert half.token_ids + rest.token_ids == whole.token_ids


def test_a_prompt_can_be_cut_from_the_left(client: Any, server: Any) -> None:
    ids = server.service.words.encode("Hello world, tokens")
    found = complete(client, ids, extra_body={"truncate_prompt_tokens": 2})
    assert found.usage.prompt_tokens == 2
    assert found.choices[0].text == complete(client, ids[-2:]).choices[0].text


def test_a_shared_beginning_is_found_in_the_cache(client: Any) -> None:
    prompt = "tokens and blocks " * 20
    complete(client, prompt)
    assert complete(client, prompt).usage.prompt_tokens_details.cached_tokens >= 16


# Chat


def test_a_chat_has_a_message(client: Any) -> None:
    found = chat(client)
    assert found.choices[0].message.role == "assistant"
    assert found.choices[0].message.content
    assert found.choices[0].finish_reason == "length"
    assert found.usage.completion_tokens == 12


def test_a_chat_stream_says_the_same_as_the_whole(client: Any) -> None:
    whole = chat(client, max_tokens=40).choices[0].message.content
    events = list(chat(client, max_tokens=40, stream=True))
    assert events[0].choices[0].delta.role == "assistant"
    assert "".join(event.choices[0].delta.content or "" for event in events) == whole


def test_the_clients_own_stream_helper_is_content(client: Any) -> None:
    more = {"extra_body": {"guided_choice": ["Hello world"]}}
    with client.chat.completions.stream(**ASK, messages=SAY, **more) as stream:
        last = stream.get_final_completion()
    assert last.choices[0].message.content == "Hello world"
    assert last.choices[0].finish_reason == "stop"


def test_the_template_is_applied(client: Any, server: Any) -> None:
    text = "<|im_start|>user\nHello world<|im_end|>\n<|im_start|>assistant\n"
    ids = server.service.words.encode(text, special=False)
    found = chat(client, extra_body={"return_token_ids": True})
    assert found.prompt_token_ids == ids
    same = complete(client, ids, logit_bias={"1": -100}).choices[0].text
    assert found.choices[0].message.content == same


def test_chat_logprobs_have_bytes(client: Any) -> None:
    rows = chat(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(rows) == 12
    assert all(len(row.top_logprobs) == 2 for row in rows)
    raw = b"".join(bytes(row.bytes) for row in rows)
    assert raw.decode("utf-8", "replace") == chat(client).choices[0].message.content


def test_several_chat_choices_are_interleaved(client: Any) -> None:
    events = list(chat(client, n=3, temperature=1.0, seed=3, stream=True))
    texts = {0: "", 1: "", 2: ""}
    for event in events:
        for choice in event.choices:
            texts[choice.index] += choice.delta.content or ""
    whole = chat(client, n=3, temperature=1.0, seed=3)
    assert [choice.message.content for choice in whole.choices] == list(texts.values())


def test_max_completion_tokens_is_the_newer_name(client: Any) -> None:
    assert chat(client, max_completion_tokens=5).usage.completion_tokens == 5


def test_parts_of_text_are_joined(client: Any) -> None:
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "world"}]
    found = chat(client, messages=[{"role": "user", "content": parts}])
    same = chat(client, messages=[{"role": "user", "content": "Hello\nworld"}])
    assert found.choices[0].message.content == same.choices[0].message.content


def test_a_developer_is_a_system_to_older_templates(client: Any) -> None:
    one, two = (
        chat(client, messages=[{"role": role, "content": "Be brief"}, *SAY])
        for role in ("developer", "system")
    )
    assert one.choices[0].message.content == two.choices[0].message.content


def test_the_last_message_can_be_continued(client: Any) -> None:
    whole = chat(client, max_tokens=30, extra_body={"return_token_ids": True})
    text = whole.choices[0].message.content
    messages = [*SAY, {"role": "assistant", "content": "Hello"}]
    found = chat(
        client,
        messages=messages,
        extra_body={"continue_final_message": True, "add_generation_prompt": False,
                    "return_token_ids": True},
    )  # fmt: skip
    assert text
    assert found.prompt_token_ids[-1] != 3, "the message is not closed"


def test_beam_search_gives_its_best_texts(client: Any) -> None:
    def ask(n: int, **more: Any) -> Any:
        return client.completions.create(
            model="tiny", prompt="Hello world", n=n, max_tokens=6,
            extra_body={"use_beam_search": True, "return_token_ids": True}, **more,
        )  # fmt: skip

    greedy = client.completions.create(
        model="tiny", prompt="Hello world", max_tokens=6, temperature=0
    )
    assert ask(1).choices[0].text == greedy.choices[0].text
    made = ask(4)
    assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
    assert len({tuple(choice.token_ids) for choice in made.choices}) == 4
    assert made.usage.completion_tokens == sum(len(choice.token_ids) for choice in made.choices)
    pieces = ["", "", "", ""]
    for event in ask(4, stream=True):
        for choice in event.choices:
            pieces[choice.index] += choice.text
    assert pieces == [choice.text for choice in made.choices]
    talk = chat(client, **BARE, n=2, extra_body={"use_beam_search": True})
    assert len(talk.choices) == 2


@pytest.mark.parametrize(
    "more",
    [
        {"user": "me"},
        {"metadata": {"a": "b"}},
        {"store": False},
        {"service_tier": "auto"},
        {"extra_body": {"request_id": "7", "priority": 1}},
        {"prediction": {"type": "content", "content": "x"}},
        {"tools": openai.NOT_GIVEN, "tool_choice": "none"},
        {"response_format": {"type": "text"}},
    ],
)
def test_what_changes_nothing_is_accepted(client: Any, more: dict[str, Any]) -> None:
    same = chat(client).choices[0].message.content
    assert chat(client, **more).choices[0].message.content == same


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"extra_body": {"best_of": 4}}, "best_of"),
        ({**BARE, "n": 33, "extra_body": {"use_beam_search": True}}, "n"),
        ({"extra_body": {"use_beam_search": True}}, "logit_bias"),
        ({"extra_body": {"length_penalty": 0.5}}, "length_penalty"),
        ({"extra_body": {"tempreature": 1}}, "tempreature"),
        ({"extra_body": {"chat_template": "x"}}, "chat_template"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"seed": "seven"}, "seed"),
        ({"stop": [1]}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 200}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
         "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]},
         "messages[0].content[0]"),
    ],
)  # fmt: skip
def test_what_is_not_honoured_is_refused(client: Any, more: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, **more)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert caught.value.code


def test_a_misspelt_field_gets_a_hint(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="Did you mean 'temperature'"):
        chat(client, extra_body={"tempreature": 1})


@pytest.mark.parametrize(
    "prompt", [None, [], 5, {"a": 1}, ["a", 1], [[]], [[1, "a"]], [1.5], [True], "", [99999], [-1]]
)
def test_a_prompt_that_is_none_is_refused(server: Any, prompt: Any) -> None:
    status, error = server.refused("/v1/completions", {"model": "tiny", "prompt": prompt})
    assert status == 400
    assert error["param"] == "prompt"


def test_a_text_beyond_the_context_is_refused(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, [5] * 500, max_tokens=100)
    assert caught.value.code == "context_length_exceeded"
    assert "512" in str(caught.value)


def test_embeddings_of_a_text_model_are_refused(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="tiny", input="Hello")
    assert caught.value.code == "unsupported_model"


def test_tokenize_and_detokenize_are_inverse(server: Any) -> None:
    text = "Grüße 你好 🙂"
    _, _, raw = server.post("/tokenize", {"prompt": text, "return_token_strs": True})
    found = json.loads(raw)
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    _, _, raw = server.post("/detokenize", {"tokens": found["tokens"]})
    assert json.loads(raw)["prompt"] == text


def test_tokenize_applies_the_template(server: Any) -> None:
    _, _, raw = server.post("/tokenize", {"messages": SAY})
    _, _, whole = server.post("/v1/chat/completions", {"messages": SAY, "max_tokens": 1})
    assert json.loads(raw)["count"] == json.loads(whole)["usage"]["prompt_tokens"]


def test_an_async_client_streams_many_at_once(server: Any) -> None:
    import asyncio

    async def whole() -> list[str]:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="x") as made:

            async def one(seed: int) -> str:
                stream = await made.chat.completions.create(
                    **{**ASK, "temperature": 1.0}, seed=seed, messages=SAY, stream=True
                )
                return "".join([e.choices[0].delta.content or "" async for e in stream])

            return await asyncio.gather(*(one(i % 4) for i in range(16)))

    texts = asyncio.run(whole())
    assert texts[:4] * 4 == texts, "what else runs does not change a seeded text"


def test_scores_of_a_prompt_come_in_vllms_form(server: Any) -> None:
    body = {
        "prompt": "Hello world",
        "max_tokens": 1,
        "prompt_logprobs": 3,
        "return_token_ids": True,
    }
    choice = json.loads(server.post("/v1/completions", body)[2])["choices"][0]
    ids, rows = choice["prompt_token_ids"], choice["prompt_logprobs"]
    assert len(ids) == len(rows) > 1
    assert rows[0] is None
    for token, row in zip(ids[1:], rows[1:], strict=True):
        own = row[str(token)]
        assert own["decoded_token"] == server.service.words.show(token)[0]
        ranks = sorted((one["rank"], -one["logprob"]) for one in row.values())
        assert [rank for rank, _ in ranks][:3] == [1, 2, 3]
        assert ranks == sorted(ranks, key=lambda pair: pair[1]), "the best first"
