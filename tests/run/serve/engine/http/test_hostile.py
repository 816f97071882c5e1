"""What a server on a network meets: broken input, vanishing and stalling clients, full queues."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from joymigrate.run.serve.web.limits import HttpLimits

from .conftest import Running, serving

LONG = {"model": "tiny", "prompt": "Hello world", "max_tokens": 400, "ignore_eos": True}


def raw(server: Running, data: bytes, *, read: bool = True) -> bytes:
    """Send bytes as they are; return what comes until the server closes."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 20) as made:
        made.sendall(data)
        if not read:
            return b""
        found = b""
        while piece := made.recv(65536):
            found += piece
        return found


def post(path: str, body: bytes, **headers: str) -> bytes:
    """A request as bytes."""
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"3",
        b'"text"',
        b"\xff\xfe",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "max_tokens": NaN}',
        b'{"prompt": "a", "max_tokens": 1e999}',
        b'{"prompt": "a" "x": 1}',
        b"[" * 100_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
    ],
)
@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/v2/models/tiny/generate"]
)
def test_what_is_no_json_object_is_refused(server: Running, path: str, body: bytes) -> None:
    status, headers, answer = server.post(path, body)
    assert status == 400
    assert headers["Content-Type"] == "application/json"
    assert "error" in json.loads(answer)


@pytest.mark.parametrize(
    "value",
    [[], {}, "", "x", -1, 1e308, 10**30, True, [None], {"a": []}, 2**63, [[[]]], 0.5],
)
@pytest.mark.parametrize(
    "name",
    ["prompt", "max_tokens", "temperature", "stop", "n", "seed", "logit_bias", "stream", "model",
     "stream_options", "logprobs", "response_format", "top_k", "stop_token_ids", "echo", "user"],
)  # fmt: skip
def test_a_value_of_any_type_is_an_answer_or_a_400(server: Running, name: str, value: Any) -> None:
    body = {"prompt": "Hello", "max_tokens": 2, name: value}
    status, _, answer = server.post("/v1/completions", body)
    assert status in (200, 400, 404), answer
    if status != 200:
        error = json.loads(answer)["error"]
        assert error["message"]
        assert "Traceback" not in error["message"]


@pytest.mark.parametrize(
    "text",
    ["\x00", "\u202e\u2066", "🙂" * 50, "e\u0301" * 40, "\ufffd", "\U0010ffff", "</s><s>",
     "' OR 1=1", "{{ 7*7 }}", "<|im_end|>"],
)  # fmt: skip
def test_any_text_is_served(server: Running, text: str) -> None:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 2}
    assert server.post("/v1/chat/completions", body)[0] == 200


def test_a_template_cannot_be_injected(server: Running) -> None:
    body = {"messages": [{"role": "user", "content": "{{ 7*7 }}"}], "max_tokens": 1}
    found = json.loads(server.post("/tokenize", {"messages": body["messages"]})[2])["tokens"]
    assert "{{ 7*7 }}" in server.service.words.decode(found)


def test_a_stream_never_splits_a_character(server: Running) -> None:
    """Byte tokens at random: nearly every character is several tokens."""
    bias = {str(token): -100 for token in range(4)}
    for seed in range(12):
        body = {
            "prompt": "🙂",
            "max_tokens": 60,
            "temperature": 3.0,
            "seed": seed,
            "logit_bias": bias,
        }
        asked = {**body, "stream": True}
        _, _, streamed = server.post("/v1/completions", asked)
        whole = json.loads(server.post("/v1/completions", body)[2])["choices"][0]["text"]
        events = [line[6:] for line in streamed.split(b"\n\n") if line.startswith(b"data: {")]
        pieces = [json.loads(event)["choices"][0]["text"] for event in events]
        assert "".join(pieces) == whole


def test_forced_characters_of_several_tokens_arrive_whole(server: Running) -> None:
    words = server.service.words
    text = "𝄞你🙂ß"
    body = {"prompt": "x", "guided_choice": [text], "max_tokens": 40, "stream": True}
    _, _, streamed = server.post("/v1/completions", body)
    events = [line[6:] for line in streamed.split(b"\n\n") if line.startswith(b"data: {")]
    pieces = [json.loads(event)["choices"][0]["text"] for event in events]
    assert len(words.encode(text)) > len(text), "the tokens are smaller than characters"
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"HELLO / HTTP/9.9\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
     b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_http_gets_an_answer_in_json(server: Running, data: bytes) -> None:
    found = raw(server, data)
    head, _, body = found.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400") or head.startswith(b"HTTP/1.0 400"), found[:200]
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_a_broken_packed_body_is_refused(server: Running) -> None:
    more = {"Content-Encoding": "gzip"}
    assert server.post("/v1/completions", b"not gzip", **more)[0] == 400


def test_an_unknown_packing_is_refused(server: Running) -> None:
    assert server.post("/v1/completions", b"{}", **{"Content-Encoding": "brotli"})[0] == 415


def test_half_a_request_does_no_harm(server: Running) -> None:
    raw(
        server,
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
        read=False,
    )
    assert server.get("/health")[0] == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 404), ("/v1", 404), ("/v1/nothing", 404), ("/v1/../etc/passwd", 404), ("/v1/%00", 404),
     ("/v1/completions", 405), ("/v1/models/", 200), ("//v1/models", 404)],
)  # fmt: skip
def test_paths_that_are_not_there(server: Running, path: str, status: int) -> None:
    found, headers, body = server.get(path)
    assert found == status
    assert headers["Content-Type"] == "application/json"
    assert status == 200 or json.loads(body)["error"]["code"]


def test_a_client_that_goes_away_frees_its_blocks(server: Running) -> None:
    steps = server.service.engine.stats().steps
    host, _, port = server.url.removeprefix("http://").partition(":")
    for stream in (True, False):
        made = socket.create_connection((host, int(port)), 20)
        made.sendall(post("/v1/completions", json.dumps({**LONG, "stream": stream}).encode()))
        while server.service.engine.stats().running == 0:
            time.sleep(0.001)
        made.close()
        server.idle()
    assert server.service.engine.stats().steps - steps < 700, "neither text ran to its end"


def test_many_cancelled_streams_leave_nothing(server: Running) -> None:
    chosen = random.Random(3)
    host, _, port = server.url.removeprefix("http://").partition(":")

    def client(number: int) -> None:
        for _ in range(4):
            body = {**LONG, "prompt": f"Hello {number}", "stream": True, "n": chosen.choice((1, 3))}
            with socket.create_connection((host, int(port)), 20) as made:
                made.sendall(post("/v1/completions", json.dumps(body).encode()))
                for _ in range(chosen.randrange(6)):
                    made.recv(4096)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    server.idle()
    assert server.get("/health")[0] == 200


def test_a_client_that_reads_nothing_holds_up_nobody(server: Running) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 20) as stalled:
        stalled.sendall(post("/v1/completions", json.dumps({**LONG, "stream": True}).encode()))
        body = {"prompt": "Hello", "max_tokens": 5}
        assert server.post("/v1/completions", body)[0] == 200
    server.idle()


# Limits


def test_a_huge_body_is_refused(folder: Path) -> None:
    with serving(folder, HttpLimits(body_bytes=10_000)) as small:
        body = b'{"prompt": "' + b"a" * 20_000 + b'"}'
        status, error = small.refused("/v1/completions", body)
        assert (status, error["code"]) == (413, "body_too_large")
        import gzip

        packed = gzip.compress(b'{"prompt": "' + b"a" * 5_000_000 + b'"}')
        assert len(packed) < 10_000
        status, error = small.refused("/v1/completions", packed, **{"Content-Encoding": "gzip"})
        assert status == 413, "what a packed body unpacks to counts"


def test_a_slow_body_is_given_up(folder: Path) -> None:
    with serving(folder, HttpLimits(body_seconds=0.2)) as hasty:
        data = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
        assert raw(hasty, data).startswith(b"HTTP/1.1 408")


def test_a_full_queue_says_when_to_come_again(folder: Path) -> None:
    openai = pytest.importorskip("openai", reason="pip install 'joymigrate[dev]'")
    with serving(folder, HttpLimits(queue=1), max_running=1) as busy:
        body = json.dumps({**LONG, "stream": True}).encode()
        host, _, port = busy.url.removeprefix("http://").partition(":")
        held = []
        for waiting in (0, 1):
            made = socket.create_connection((host, int(port)), 20)
            made.sendall(post("/v1/completions", body))
            held.append(made)
            while busy.service.engine.stats().waiting < waiting or busy.service.texts < waiting + 1:
                time.sleep(0.001)
        with openai.OpenAI(base_url=busy.url + "/v1", api_key="x", max_retries=0) as client:
            with pytest.raises(openai.RateLimitError) as caught:
                client.completions.create(model="tiny", prompt="Hello")
            assert caught.value.response.headers["Retry-After"] == "1"
            assert caught.value.code == "queue_full"
        for made in held:
            made.close()
        busy.idle()


def test_a_key_is_needed_where_keys_are_set(folder: Path) -> None:
    openai = pytest.importorskip("openai", reason="pip install 'joymigrate[dev]'")
    with serving(folder, keys=("secret", "other")) as guarded:
        for path in ("/health", "/ready", "/metrics", "/v2/health/live"):
            assert guarded.get(path)[0] == 200
        for path in ("/v1/models", "/v2/models/tiny", "/openapi.json", "/nowhere"):
            assert guarded.get(path)[0] == 401
        with openai.OpenAI(base_url=guarded.url + "/v1", api_key="wrong") as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                client.models.list()
            assert caught.value.code == "invalid_api_key"
        with openai.OpenAI(base_url=guarded.url + "/v1", api_key="other") as client:
            assert len(client.models.list().data) == 2
        status, _, _ = guarded.post("/v1/completions", {"prompt": "a"}, **{"X-Api-Key": "secret"})
        assert status == 200


def test_a_stalled_reader_is_cut_off(folder: Path) -> None:
    with serving(folder, HttpLimits(stall_seconds=0.2)) as impatient:
        host, _, port = impatient.url.removeprefix("http://").partition(":")
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.connect((host, int(port)))
        body = {**LONG, "stream": True, "logprobs": 20, "n": 24}
        made.sendall(post("/v1/completions", json.dumps(body).encode()))
        impatient.idle()
        made.close()


def test_a_request_that_takes_long_to_read_holds_up_nobody(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = server.service.words
    encode = words.encode
    begun, go_on = threading.Event(), threading.Event()

    def slow(text: str, *, special: bool = True) -> list[int]:
        if len(text) > 10**5:
            begun.set()
            assert go_on.wait(20)
        return encode(text, special=special)  # type: ignore[no-any-return]

    monkeypatch.setattr(words, "encode", slow)
    found: list[int] = []
    long = {"prompt": "Hello world " * 10**4, "max_tokens": 1}
    client = threading.Thread(target=lambda: found.append(server.post("/v1/completions", long)[0]))
    client.start()
    assert begun.wait(20)
    assert server.get("/health")[0] == 200
    assert server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2})[0] == 200
    assert not found
    go_on.set()
    client.join(20)
    assert found == [400]
