"""The table of APIs: who reaches what, and answers of every API read as one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from joymigrate.run.serve.engine.http import routes
from joymigrate.run.serve.evidence.failures import BackendFailure
from joymigrate.run.serve.gateway import whole_answers
from joymigrate.run.serve.gateway.calls import GatewayCall
from joymigrate.run.serve.gateway.stream import RelayedStream
from joymigrate.run.serve.ranking import service as ranking
from joymigrate.run.serve.web import address, apis, forms
from joymigrate.run.serve.web.apis import EMBEDDINGS, MESSAGES, RESPONSES, SCORES, ApiRoute
from tests.run.serve.gateway.conftest import Bench, Table, ramp

USAGE = {"input_tokens": 3, "output_tokens": 2}


def test_every_path_of_our_own_servers_has_a_row() -> None:
    fixed = [*routes.ROUTES.fixed, *ranking.PATHS.fixed]
    assert [path for path in fixed if apis.find(path) is None] == []


@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions/", "//v1/chat/completions", "/v1/../shutdown", "/V1/models", "/",
     "/v1/chat/completions;x", "/v1/%63hat/completions", "/v2/models/../repository/index/infer",
     "/v2/models/m%2f..%2f/infer", "/v1/models/%2e%2e/x", "http://h/v1/models", "/v1/files"],
)  # fmt: skip
def test_another_spelling_of_a_path_is_nobodys(path: str) -> None:
    assert apis.find(path) is None


def test_an_operator_lists_more_paths() -> None:
    assert apis.find("/v1/files", ["/v1/files"]) is apis.OTHER
    assert apis.find("/mine/a/b", ["/mine/"]) is apis.OTHER
    assert apis.find("/mine/../shutdown", ["/mine/"]) is None
    assert not apis.OTHER.repeats, "nobody knows what it does"


def call(api: ApiRoute, **body: Any) -> GatewayCall:
    return GatewayCall(api, "POST", api.paths[0], {}, b"", {"model": "m", **body}, 0.0)


def response(**more: Any) -> dict[str, Any]:
    item = {"type": "message", "content": [{"type": "output_text", "text": "hi there"}]}
    return {"id": "r", "object": "response", "status": "completed", "output": [item],
            "usage": USAGE, **more}  # fmt: skip


def message(**more: Any) -> dict[str, Any]:
    return {"id": "m", "type": "message", "role": "assistant", "stop_reason": "end_turn",
            "content": [{"type": "text", "text": "hi there"}], "usage": USAGE, **more}  # fmt: skip


@pytest.mark.parametrize(("api", "sound"), [(RESPONSES, response()), (MESSAGES, message())])
def test_answers_of_each_api_are_read_as_a_chats(api: ApiRoute, sound: dict[str, Any]) -> None:
    read = whole_answers.judge(json.dumps(sound).encode(), call(api))
    assert (read.main.text, read.main.finish) == ("hi there", "stop")
    assert read.usage_so_far() == (2, 3)
    assert whole_answers.oddity(read, call(api)) is None


@pytest.mark.parametrize(
    ("api", "broken", "kind"),
    [
        (RESPONSES, response(status="failed", error={"code": "x"}), "error_after_200"),
        (RESPONSES, response(status="in_progress"), "missing_finish"),
        (RESPONSES, response(output="hi"), "invalid_json"),
        (MESSAGES, message(stop_reason=None), "missing_finish"),
        (MESSAGES, {"type": "error", "error": {"type": "api_error"}}, "error_after_200"),
        (EMBEDDINGS, {"data": []}, "invalid_json"),
        (EMBEDDINGS, {"data": [{"embedding": [0.1, None]}]}, "invalid_json"),
        (SCORES, {"results": [{"index": 0}]}, "invalid_json"),
    ],
)
def test_a_200_that_is_no_answer_is_a_failure(api: ApiRoute, broken: Any, kind: str) -> None:
    with pytest.raises(BackendFailure) as caught:
        whole_answers.judge(json.dumps(broken).encode(), call(api, input="q"))
    assert caught.value.kind == kind


def events(*given: dict[str, Any]) -> bytes:
    return b"".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in given)


TOLD = {"type": "response.output_text.delta", "delta": "hi there"}
CALLED = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
START = {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 3}}}
TEXT_DELTA = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hi there"}}
STOP = {"type": "message_delta", "delta": {"stop_reason": "end_turn"},
        "usage": {"output_tokens": 2}}  # fmt: skip
END = {"type": "message_stop"}


@pytest.mark.parametrize(
    ("api", "data", "failure"),
    [
        (RESPONSES, events(TOLD, {"type": "response.completed", "response": response()}), None),
        (RESPONSES, events(TOLD), "truncated"),
        (RESPONSES, events(TOLD, {"type": "response.failed", "response": {}}), "error_after_200"),
        (RESPONSES, events(TOLD, {"type": "error", "message": "no"}), "error_after_200"),
        (MESSAGES, events(START, TEXT_DELTA, STOP, END), None),
        (MESSAGES, events(START, TEXT_DELTA, STOP), "truncated"),
        (MESSAGES, events(START, TEXT_DELTA, END), "missing_finish"),
        (MESSAGES, events(START, TEXT_DELTA, {"type": "error", "error": {}}), "error_after_200"),
    ],
)
def test_streams_of_each_api_end_as_it_says(
    api: ApiRoute, data: bytes, failure: str | None
) -> None:
    stream = RelayedStream(api.form)
    out = stream.feed(data)
    stream.end()
    assert (stream.failure, "".join(stream.pieces)) == (failure, "hi there")
    if failure is None:
        assert out == data
        assert (stream.tokens, stream.prompt_tokens, stream.main.finish) == (2, 3, "stop")


def test_tool_calls_of_each_api_are_followed() -> None:
    block = {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "f"}}
    rest = {"type": "content_block_delta", "delta": {"partial_json": "{}"}}
    for api, data in (
        (MESSAGES, events(START, block, rest)),
        (RESPONSES, events({"type": "response.output_item.done", "item": CALLED})),
    ):
        stream = RelayedStream(api.form)
        stream.feed(data)
        assert stream.main.functions == [("f", "{}")], api.name


def test_a_broken_stream_ends_in_the_words_of_its_api() -> None:
    assert b'"type": "error"' in forms.broken_event(forms.MESSAGES, "cut")
    assert forms.broken_event(forms.CHAT, "cut").endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("headers", "here"),
    [
        ({"Host": "127.0.0.1:8080"}, True),
        ({"Host": "localhost"}, True),
        ({"Host": "[::1]:80", "Origin": "http://localhost:3000"}, True),
        ({"Host": "evil.example"}, False),
        ({"Host": "localhost", "Origin": "https://evil.example"}, False),
        ({"Host": "localhost", "Origin": "null"}, False),
        ({"Host": "localhost", "X-Forwarded-For": "10.0.0.9"}, False),
    ],
)
def test_loopback_guards_against_pages_and_proxies(headers: dict[str, str], here: bool) -> None:
    assert address.is_asked_here(headers) == here


def test_management_needs_the_admin_key_and_nothing_else_is_reached(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        for path, key, status in (
            ("/shutdown", "client", 403), ("/v1/load_lora_adapter", "client", 403),
            ("/collective_rpc", "", 401), ("/unheard/of", "client", 404),
            ("/v1/chat/completions/", "client", 404), ("/flush_cache", "boss", 200),
        ):  # fmt: skip
            before = bench.gpu.seen + bench.npu.seen
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            url = bench.url + path
            async with bench.session.post(url, json={}, headers=headers) as reply:
                assert (path, reply.status < 400) == (path, status < 400)
                assert status == 200 or reply.status == status, path
            reached = bench.gpu.seen + bench.npu.seen > before
            assert reached == (status == 200), path

    table.run(scenario, rollout=ramp(5), admin_key="boss", keys=["client"])


ASKED = ("/v1/chat/completions", "/v1/messages?beta=true", "/v2/models/m/infer")
MANAGED = ("/v1/load_lora_adapter", "/v2/repository/models/m/load")


def words_in(said: Any) -> tuple[str, str]:
    """Whose error object this is, and its message."""
    error = said["error"]
    if isinstance(error, str):
        return apis.TRITON_WORDS, error
    return apis.ANTHROPIC if said.get("type") == "error" else apis.OPENAI, error["message"]


@pytest.mark.parametrize(
    ("status", "why", "paths", "sections"),
    [
        (502, "no backend could answer", ASKED, {}),
        (503, "requests wait for", ASKED,
         {"gpu_more": {"connections": 0}, "npu_more": {"connections": 0},
          "limits": {"queue": 0}}),
        (401, "key", ASKED, {"keys": ["another"]}),
        (403, "needs the admin key", MANAGED, {"keys": ["client"], "admin_key": "boss"}),
    ],
)  # fmt: skip
def test_the_gateways_own_refusals_are_in_the_words_of_the_api_that_was_called(
    table: Table, status: int, why: str, paths: tuple[str, ...], sections: dict[str, Any]
) -> None:
    async def scenario(bench: Bench) -> None:
        found = []
        for path in paths:
            asked = {"model": "m", "max_tokens": 3, "messages": [], "inputs": []}
            headers = {"Authorization": "Bearer client"}
            async with bench.session.post(bench.url + path, json=asked, headers=headers) as reply:
                assert reply.status == status, path
                words, message = words_in(await reply.json())
            assert why in message
            found.append(words)
        assert found == [apis.words_of(path.partition("?")[0]) for path in paths]
        assert len(set(found)) == len(paths), "each path is of another API"

    table.run(scenario, gpu={"refuse": 1.0}, npu={"refuse": 1.0}, **sections)
