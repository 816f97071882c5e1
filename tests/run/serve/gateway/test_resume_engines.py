"""Two real engines behind a real gateway, the first one cut off after every event in turn: the
client gets the whole answer, or an error that it sees. Never another text."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'joymigrate[serve]'")

import aiohttp
from aiohttp import web

from joymigrate.run.serve.gateway import settings
from joymigrate.run.serve.gateway.server import Gateway
from tests.run.serve.engine.http.conftest import make_model, serving

TOKENS = 24
TOOL = {
    "type": "function",
    "function": {
        "name": "weigh",
        "parameters": {
            "type": "object",
            "properties": {"what": {"type": "string", "maxLength": 6}},
            "required": ["what"],
            "additionalProperties": False,
        },
    },
}
# Every sampling field, alone or where it matters with another one. "seed" and "temperature" are
# given where something else would be drawn.
SAMPLED = {"temperature": 1.3, "seed": 11}
COMMON: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seed": SAMPLED,
    "top_k": {**SAMPLED, "top_k": 5},
    "top_p": {**SAMPLED, "top_p": 0.8},
    "min_p": {**SAMPLED, "min_p": 0.05},
    "repetition_penalty": {"temperature": 0, "repetition_penalty": 1.4},
    "presence_penalty": {"temperature": 0, "presence_penalty": 1.7},
    "frequency_penalty": {**SAMPLED, "frequency_penalty": 1.1},
    "all penalties": {
        **SAMPLED, "repetition_penalty": 0.8, "presence_penalty": -1.0, "frequency_penalty": 0.9,
    },
    "min_tokens": {**SAMPLED, "min_tokens": 12, "stop": [" ", "e", "a"]},
    "stop": {**SAMPLED, "stop": ["zzzz", "ab a", "the end of it all"]},
    "stop included": {**SAMPLED, "stop": ["o", "u"], "include_stop_str_in_output": True,
                      "min_tokens": 5},
    "stop_token_ids": {**SAMPLED, "stop_token_ids": list(range(40, 60)), "min_tokens": 6},
    "ignore_eos": {**SAMPLED, "ignore_eos": True, "logit_bias": {"1": 8}},
    "logit_bias": {**SAMPLED, "logit_bias": {"70": 5, "71": 5, "72": -50}},
    "special tokens": {**SAMPLED, "skip_special_tokens": False, "logit_bias": {"2": 9, "3": 9}},
    "bytes": {**SAMPLED, "logit_bias": {str(i): 6 for i in range(130, 260)}},
    "guided_regex": {**SAMPLED, "guided_regex": "[a-h]{4,9} [0-9]{5}"},
    "guided_choice": {**SAMPLED, "guided_choice": ["abcdefgh 1", "abcdefgh 2", "abcdezzzz"]},
    "guided_grammar": {**SAMPLED, "guided_grammar": 'start: ("ab" | "cd")+ "."'},
    "guided_json": {**SAMPLED, "guided_json": {
        "type": "object", "properties": {"a": {"type": "string", "maxLength": 5},
                                         "b": {"type": "integer"}},
        "required": ["a", "b"], "additionalProperties": False}},
    "structured_outputs": {**SAMPLED, "structured_outputs": {"regex": "(xy|yx){2,8}"}},
    "json_object": {**SAMPLED, "response_format": {"type": "json_object"}},
    "truncate_prompt_tokens": {**SAMPLED, "truncate_prompt_tokens": 3},
    "usage at the end": {**SAMPLED, "stream_options": {"include_usage": True}},
    "choices": {**SAMPLED, "n": 3, "frequency_penalty": 0.7, "stop": ["a", "e", "o"]},
    "choices in words": {**SAMPLED, "n": 2, "guided_regex": "[a-h]{2,9} [0-9]{3}"},
    "greedy choices": {"temperature": 0, "n": 2, "stream_options": {"include_usage": True}},
    "usage": {**SAMPLED, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
}  # fmt: skip
CHAT = {
    "logprobs": {**SAMPLED, "logprobs": True, "top_logprobs": 2},
    "tools auto": {**SAMPLED, "tools": [TOOL]},
    "tools required": {**SAMPLED, "tools": [TOOL], "tool_choice": "required"},
    "tools named": {
        **SAMPLED,
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "weigh"}},
    },
    "choices with tools required": {
        **SAMPLED,
        "tools": [TOOL],
        "tool_choice": "required",
        "n": 2,
        "stream_options": {"include_usage": True},
    },
    "max_completion_tokens": {**SAMPLED, "max_completion_tokens": 9},
    "choices with tools": {**SAMPLED, "tools": [TOOL], "n": 2},
    "choices with logprobs": {**SAMPLED, "logprobs": True, "top_logprobs": 1, "n": 2},
}
TEXT = {
    "logprobs": {**SAMPLED, "logprobs": 2},
    "echo": {**SAMPLED, "echo": True},
    "echo and logprobs": {"temperature": 0, "echo": True, "logprobs": 0},
    "prompt_logprobs": {**SAMPLED, "prompt_logprobs": 1},
    "choices with echo": {**SAMPLED, "echo": True, "logprobs": 1, "n": 2},
    "prompt as ids": {**SAMPLED, "prompt": [40, 41, 42, 90, 91]},
    "prompts": {
        **SAMPLED,
        "prompt": ["Grüße", "a text", "of three"],
        "stop": ["e", "o"],
        "stream_options": {"include_usage": True},
    },
    "prompts with choices": {
        **SAMPLED,
        "prompt": [[40, 41], [42, 90, 91]],
        "n": 2,
        "echo": True,
        "logprobs": 1,
        "presence_penalty": 0.6,
    },
    "add_special_tokens": {**SAMPLED, "add_special_tokens": False},
}
CASES = [
    *((f"chat: {name}", True, more) for name, more in {**COMMON, **CHAT}.items()),
    *((f"text: {name}", False, more) for name, more in {**COMMON, **TEXT}.items()),
]


class Cutter:
    """A server before an engine that breaks the connection after so many events."""

    def __init__(self, behind: str) -> None:
        self.behind, self.events, self.cut = behind, 10**9, False
        self.runner: web.ServerRunner | None = None
        self.url = ""

    async def start(self) -> None:
        self.runner = web.ServerRunner(web.Server(self.handle))
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        headers = {"Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method, self.behind + request.path, data=body or None, headers=headers
            ) as answer,
        ):
            if "event-stream" not in answer.headers.get("Content-Type", ""):
                return web.Response(
                    status=answer.status, body=await answer.read(),
                    content_type="application/json",
                )  # fmt: skip
            response = web.StreamResponse(status=200, headers={
                name: value for name, value in answer.headers.items()
                if name.startswith(("X-", "Content-Type"))
            })  # fmt: skip
            await response.prepare(request)
            for event in (await answer.read()).split(b"\n\n")[: self.events]:
                if event:
                    await response.write(event + b"\n\n")
            if self.events < 10**9:
                self.cut = True
                assert request.transport is not None
                request.transport.close()
        return response


class Pair:
    """The two engines, the gateway, and a client."""

    def __init__(self, cutter: Cutter, url: str, session: aiohttp.ClientSession) -> None:
        self.cutter, self.url, self.session = cutter, url, session

    async def ask(self, chat: bool, more: dict[str, Any], events: int = 10**9) -> Told:
        """The client's view of a stream that is cut after `events` events."""
        asked: dict[str, Any] = {
            "model": "tiny", "stream": True, "max_tokens": TOKENS, "return_token_ids": True,
        }  # fmt: skip
        if chat:
            asked["messages"] = [{"role": "user", "content": "Grüße, tell a text"}]
        else:
            asked["prompt"] = "Grüße aus Köln, a text"
        self.cutter.events = events
        path = "/v1/chat/completions" if chat else "/v1/completions"
        async with self.session.post(self.url + path, json={**asked, **more}) as reply:
            raw = await reply.read()
            assert reply.status == 200, raw
        return Told(raw)


class Told:
    """What a client makes of a stream."""

    def __init__(self, raw: bytes) -> None:
        events = [event for event in raw.split(b"\n\n") if event]
        self.count = len(events)
        parsed = [json.loads(event[6:]) for event in events if event != b"data: [DONE]"]
        self.error = next((one["error"] for one in parsed if one.get("error")), None)
        self.done = events[-1:] == [b"data: [DONE]"]
        self.usage = next((one["usage"] for one in reversed(parsed) if one.get("usage")), None)
        if self.usage:
            self.usage.pop("prompt_tokens_details")  # each engine's own cache
        self.choices: dict[int, dict[str, Any]] = {}
        for one in parsed:
            for choice in one.get("choices") or ():
                self.add(choice)

    def add(self, choice: dict[str, Any]) -> None:
        kept = self.choices.setdefault(
            choice["index"],
            {"text": "", "ids": [], "logprobs": [], "calls": "", "finish": None, "stop": None},
        )
        source = choice.get("delta", choice)
        kept["text"] += source.get("content") or source.get("text") or ""
        kept["ids"] += choice.get("token_ids") or []
        for call in source.get("tool_calls") or ():
            kept["calls"] += call["function"].get("name") or ""
            kept["calls"] += call["function"].get("arguments") or ""
        numbers = choice.get("logprobs") or {}
        rows = numbers.get("content") or list(
            zip(
                numbers.get("tokens") or (), numbers.get("text_offset") or (),
                numbers.get("token_logprobs") or (), strict=True,
            )
        )  # fmt: skip
        kept["logprobs"] += rows
        kept["finish"] = choice.get("finish_reason") or kept["finish"]
        kept["stop"] = choice.get("stop_reason", kept["stop"])


def same(whole: Told, other: Told) -> bool:
    """Whether two clients have the same answer; numbers to 1e-4."""
    if whole.choices.keys() != other.choices.keys() or whole.usage != other.usage:
        return False
    for index, mine in whole.choices.items():
        theirs = other.choices[index]
        if any(mine[name] != theirs[name] for name in ("text", "ids", "calls", "finish", "stop")):
            return False
        if not near(mine["logprobs"], theirs["logprobs"]):
            return False
    return True


def near(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) < 1e-4
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(near, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(near(one[key], other[key]) for key in one)
    return bool(one == other)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Two engines of the same model, with their own caches."""
    pytest.importorskip("llguidance", reason="pip install 'joymigrate[serve]'")
    folder = make_model(tmp_path_factory.mktemp("pair") / "tiny", seed=5)
    with serving(folder) as one, serving(folder, prefix_cache=False) as other:
        yield one.url, other.url


@asynccontextmanager
async def opened(engines: tuple[str, str], folder: Path) -> Any:
    cutter = Cutter(engines[0])
    await cutter.start()
    raw = {
        "listen": "127.0.0.1:0",
        "upstreams": {
            "one": {"url": cutter.url, "role": "primary"},
            "other": {"url": engines[1], "role": "standby"},
        },
        "monitor": {"devices": False, "backends": False},
        "rollout": {"start": "manual", "min_step_pairs": 0},
    }
    gateway = Gateway(settings.parse(raw, folder / "gateway.yaml"), unverified=True)
    await gateway.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Pair(cutter, gateway.site.url, session), gateway
    finally:
        await gateway.stop()
        assert cutter.runner is not None
        await cutter.runner.cleanup()


def sweep(
    engines: tuple[str, str], folder: Path, cases: list[Any], step: int
) -> tuple[dict[str, list[int]], list[str], dict[str, int]]:
    """(cuts that ended with an error by case, silently wrong ones, resumptions by way)."""
    errors: dict[str, list[int]] = {}
    wrong: list[str] = []
    ways: dict[str, int] = {}

    async def whole() -> None:
        async with opened(engines, folder) as (pair, gateway):
            for place, (name, chat, more) in enumerate(cases):
                want = await pair.ask(chat, more)
                assert want.error is None, (name, want.error)
                assert want.done, name
                for cut in range(1 + place % step, want.count, step):
                    got = await pair.ask(chat, more, cut)
                    if got.error is not None:
                        errors.setdefault(name, []).append(cut)
                    elif not got.done or not same(want, got):
                        wrong.append(f"{name} cut at {cut}: {want.choices} {got.choices}")
            for way in ("resume", "ids", "replay"):
                ways[way] = int(gateway.meters.resumed.of("other", way).value)

    asyncio.run(asyncio.wait_for(whole(), 560))
    return errors, wrong, ways


def judge(errors: dict[str, list[int]], wrong: list[str], ways: dict[str, int]) -> None:
    print("resumed:", ways)
    for name, cuts in errors.items():
        print("ended with an error:", name, "cut at", cuts)
    assert not wrong, "\n".join(wrong[:5])
    assert not errors
    assert ways["resume"] > 0


def test_fields_are_cut_at_some_places(engines: tuple[str, str], tmp_path: Path) -> None:
    judge(*sweep(engines, tmp_path, CASES, 61))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_every_field_cut_at_every_place(
    engines: tuple[str, str], tmp_path: Path, part: int
) -> None:
    judge(*sweep(engines, tmp_path, CASES[part::3], 1))


def test_an_engine_refuses_to_go_on_behind_what_it_would_not_say(
    engines: tuple[str, str],
) -> None:
    async def whole() -> list[tuple[int, str]]:
        found = []
        body = {"model": "tiny", "prompt": "a text", "stream": True, "temperature": 0}
        async with aiohttp.ClientSession() as session:

            async def ask(resume: Any, **more: Any) -> tuple[int, Any]:
                asked = {**body, "resume": resume, **more}
                async with session.post(engines[0] + "/v1/completions", json=asked) as reply:
                    return reply.status, await reply.text()

            ids = (await ask(None, return_token_ids=True, max_tokens=1))[1]
            prompt = json.loads(ids.split("\n")[0][6:])["choices"][0]["prompt_token_ids"]
            good = {"prompt_ids": prompt, "output_ids": [50, 51]}
            cases: list[tuple[Any, dict[str, Any]]] = [
                ({**good, "prompt_ids": [5]}, {}),
                ({**good, "text": "other words"}, {}),
                (good, {"guided_regex": "[0-9]+", "max_tokens": 5}),
                ({**good, "output_ids": [50, 1, 51]}, {}),
                ({**good, "output_ids": [50] * 17}, {}),
                ({**good, "output_ids": [10**6]}, {}),
                ({**good, "output_ids": ["a"]}, {}),
                (good, {"n": 2}),
                ({"prompt_ids": prompt, "choices": [{"output_ids": [50]}]}, {"n": 2}),
                ({"prompt_ids": prompt, "choices": [{"output_ids": [50]}, 7]}, {"n": 2}),
                ({"prompt_ids": prompt, "choices": [None, {"output_ids": [50, 1, 51]}]}, {"n": 2}),
            ]
            for resume, more in cases:
                found.append(await ask(resume, **more))
        return found

    said = asyncio.run(whole())
    assert [status for status, _ in said] == [409, 409, 409, 409, 409, 409, *[400] * 4, 409], said


def test_the_cases_name_every_sampling_field() -> None:
    from dataclasses import fields

    from joymigrate.run.serve.engine.types import Sampling

    told = set(itertools.chain.from_iterable(more for _, _, more in CASES))
    other = {"include_stop": "include_stop_str_in_output", "skip_special": "skip_special_tokens"}
    missing = {other.get(one.name, one.name) for one in fields(Sampling)} - told
    assert missing == {"max_tokens"}, "which every case has"


def test_a_server_that_does_not_resume_is_asked_again_and_compared(
    engines: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("joymigrate.run.serve.gateway.backend.ENGINE", "X-Nobody")
    cases = [case for case in CASES if case[0] in ("chat: seed", "text: bytes", "text: stop")]
    errors, wrong, ways = sweep(engines, tmp_path, cases, 5)
    assert not wrong, "\n".join(wrong[:3])
    assert not errors
    assert ways["resume"] == 0
    assert ways["replay"] > 3
