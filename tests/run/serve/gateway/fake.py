"""A fake backend that speaks the OpenAI API over real HTTP and fails on schedule.

Its "model" is a function: the next token depends on all tokens before it, so that two healthy
fakes agree on every answer and a stream that goes on behind given token ids is the same stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.run.serve.gateway.faults import Schedule

VOCABULARY = 50_000
HANG_SECONDS = 3600.0
DRIP_SECONDS = 0.05
SLOW_SECONDS = 0.05
BANG = "!!!!"
REFUSAL = "I'm sorry, but I can't help with that."
OTHER_MODEL = (11,)  # salt of its answers
# Answers of servers that are set up wrongly: status line, content type, body, further headers.
PAGE = b"<!doctype html><title>Sign in</title><p>Please sign in.</p>"
MISTAKES: dict[str, tuple[str, str, bytes, str]] = {
    "status_400": ("400 Bad Request", "application/json", b'{"error":{"message":"bad"}}', ""),
    "status_401": ("401 Unauthorized", "application/json", b'{"error":{"message":"key"}}', ""),
    "status_404": ("404 Not Found", "application/json", b'{"error":{"message":"gone"}}', ""),
    "redirect": ("302 Found", "text/html", PAGE, "Location: /login\r\n"),
    "html": ("200 OK", "text/html; charset=utf-8", PAGE, ""),
    "no_body": ("200 OK", "application/json", b"", ""),
    "no_content": ("204 No Content", "application/json", b"", ""),
    "bare_object": ("200 OK", "application/json", b"{}", ""),
}


def next_id(before: list[int]) -> int:
    """The token that follows `before`."""
    return zlib.crc32(b",".join(b"%d" % token for token in before)) % VOCABULARY


def generate(prompt: list[int], count: int) -> list[int]:
    """`count` tokens that follow `prompt`."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_id(tokens))
    return tokens[len(prompt) :]


def text_of(token: int) -> str:
    """How a token reads. Every seventh is not plain ASCII."""
    return f" {'词' if token % 7 == 0 else 'w'}{token}"


GROWS = ("text", "token_ids")


def prompt_ids(body: dict[str, Any]) -> list[int]:
    """The prompt as token ids: as given, or one per word."""
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return [int(token) for token in prompt]
    text = prompt if isinstance(prompt, str) else json.dumps(body.get("messages"))
    return [zlib.crc32(word.encode()) % VOCABULARY for word in text.split()]


def full_text(body: dict[str, Any], tokens: int) -> str:
    """What a healthy backend answers to `body`."""
    wanted = body.get("max_tokens") or tokens
    return "".join(text_of(token) for token in generate(prompt_ids(body), wanted))


def join_events(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole answer that the events of a stream make: of one choice, where lists and texts grow
    and the rest stays."""
    answer = {name: value for event in events for name, value in event.items() if value}
    whole: dict[str, Any] = {}
    for choice in (one for event in events for one in event["choices"]):
        for name, value in choice.items():
            parts = whole.setdefault("message" if name == "delta" else name, {})
            if not isinstance(value, dict):
                whole[name] = whole[name] + value if name in GROWS and whole[name] else value
                continue
            for inner, piece in value.items():
                grown = inner in parts and inner != "role"
                parts[inner] = parts[inner] + piece if grown else piece
    return {**answer, "choices": [whole]}


@dataclass(slots=True)
class Fake:
    """One fake backend. `seen` counts inference requests, `injected` the faults by kind."""

    schedule: Schedule = field(default_factory=Schedule)
    tokens: int = 24
    gap_seconds: float = 0.0
    salt: tuple[int, ...] = ()  # another salt is another model
    drift: float = 0.0  # share of the answers that differ from the other backend's
    empty: bool = False  # answers without a word
    takes_ids: bool = True  # accepts prompts of token ids
    metrics: str = ""  # what /metrics says, if anything
    seen: int = 0
    healthy: bool = True
    injected: Counter[str] = field(default_factory=Counter)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keep_bodies: bool = False
    server: asyncio.Server | None = None
    port: int = 0
    open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self, port: int = 0) -> None:
        """Listen on loopback."""
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", port, backlog=1024)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop like a process that died: nothing is said to anybody."""
        if self.server is not None:
            self.server.close()
            for writer in list(self.open):
                writer.transport.abort()
            self.server = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self.open.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
                size = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        size = int(line[15:])
                body = await reader.readexactly(size) if size else b""
                if method == "GET":
                    await self.get(writer, path)
                else:
                    await self.post(writer, path, json.loads(body or b"{}"))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError, ValueError):
            pass
        finally:
            self.open.discard(writer)
            writer.close()

    async def get(self, writer: asyncio.StreamWriter, path: str) -> None:
        """Health and the list of models."""
        if path == "/v1/models":
            await whole(writer, 200, {"object": "list", "data": [{"id": "fake"}]})
        elif path == "/metrics" and self.metrics:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n"
            text = self.metrics.encode()
            writer.write(head % len(text) + text)
        elif path == "/health":
            await whole(writer, 200 if self.healthy else 503, {})
        else:
            await whole(writer, 404, {"error": {"message": "not here"}})

    async def post(self, writer: asyncio.StreamWriter, path: str, body: dict[str, Any]) -> None:
        """One inference request, healthy or not."""
        self.seen += 1
        if self.keep_bodies:
            self.bodies.append(body)
        if isinstance(body.get("prompt"), list) and not self.takes_ids:
            await whole(writer, 400, {"error": {"message": "a prompt is a string"}})
            return
        if body.get("model") == "unknown":
            await whole(writer, 404, {"error": {"message": "no such model"}})
            return
        kind, rng = self.schedule.of(self.seen)
        if kind is not None:
            self.injected[kind] += 1
        if await self.broken_before(writer, kind):
            return
        events = self.events(path, self.misread(body, kind), rng, kind)
        if body.get("stream"):
            await self.stream(writer, events, kind, rng)
        else:
            await self.whole(writer, path, events, kind)

    async def broken_before(self, writer: asyncio.StreamWriter, kind: str | None) -> bool:
        """Faults that come instead of an answer."""
        if kind == "refuse":
            writer.transport.abort()
            raise ConnectionResetError
        if kind in ("status_500", "status_503"):
            await whole(writer, int(kind[-3:]), {"error": {"message": "injected"}})
            return True
        if kind == "busy":
            await whole(writer, 429, {"error": {"message": "busy"}}, "Retry-After: 1\r\n")
            return True
        if kind == "hang":
            await asyncio.sleep(HANG_SECONDS)
        if kind == "slow":
            await asyncio.sleep(SLOW_SECONDS)
        if kind in MISTAKES:
            await foreign(writer, *MISTAKES[kind])
            return True
        return False

    def misread(self, body: dict[str, Any], kind: str | None) -> dict[str, Any]:
        """The question as a backend takes it that ends too early."""
        return {**body, "max_tokens": 1} if kind == "short" else body

    def events(
        self, path: str, body: dict[str, Any], rng: random.Random, kind: str | None = None
    ) -> list[dict[str, Any]]:
        """The events of a whole stream; its text is another one for some kinds of fault."""
        prompt = prompt_ids(body)
        count = body.get("max_tokens") or self.tokens
        salt = OTHER_MODEL if kind == "other_text" else self.salt
        tokens = generate([*salt, *prompt], count)
        if rng.random() < self.drift:
            tokens = [*tokens[:-1], (tokens[-1] + 1) % VOCABULARY]
        chat, ids = "chat" in path, bool(body.get("return_token_ids"))
        made = []
        for place, token in enumerate(tokens):
            text = "" if self.empty or kind == "silent" else text_of(token)
            if kind == "refusing":
                text = REFUSAL if place == 0 else ""
            choice: dict[str, Any] = {"index": 0}
            choice |= {"delta": {"content": text}} if chat else {"text": text}
            choice["finish_reason"] = "length" if place == count - 1 else None
            if ids:
                choice["token_ids"] = [token]
            if body.get("logprobs"):
                choice["logprobs"] = logprobs_of(token, text, chat=chat)
            made.append(envelope(chat, prompt, choice))
        if chat:
            role = {"index": 0, "delta": {"role": "assistant", "content": ""}}
            made.insert(0, envelope(chat, prompt, {**role, "finish_reason": None}))
        if ids:
            made[0]["prompt_token_ids"] = prompt
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": count,
            "total_tokens": len(prompt) + count,
        }
        if (body.get("stream_options") or {}).get("include_usage") or not body.get("stream"):
            made.append({**envelope(chat, prompt, None), "usage": usage})
        for event in made:
            misreport(event, kind)
        return made

    async def stream(
        self,
        writer: asyncio.StreamWriter,
        events: list[dict[str, Any]],
        kind: str | None,
        rng: random.Random,
    ) -> None:
        """Send a stream, and break it where the schedule says so."""
        wrong = kind == "wrong_type"
        writer.write(STREAM_HEAD.replace(b"event-stream", b"plain") if wrong else STREAM_HEAD)
        if kind == "error_after_200":
            chunk(writer, sse({"error": {"message": "injected", "code": 500}}))
            chunk(writer, b"data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")
            return
        place = rng.randrange(1, max(2, len(events) - 2))
        for number, event in enumerate(events):
            if (
                kind is not None
                and number == place
                and await self.broken_midway(writer, kind, chat="delta" in events[0]["choices"][0])
            ):
                return
            chunk(writer, sse(event))
            if self.gap_seconds or kind == "drip":
                await writer.drain()
                await asyncio.sleep(DRIP_SECONDS if kind == "drip" else self.gap_seconds)
        chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def broken_midway(self, writer: asyncio.StreamWriter, kind: str, *, chat: bool) -> bool:
        """A fault in the middle of a stream; True when the stream is over."""
        if kind == "truncate":
            writer.write(b"0\r\n\r\n")
        elif kind == "missing_finish":
            chunk(writer, b"data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")
        elif kind == "error_midway":
            chunk(writer, sse({"error": {"message": "injected", "code": 500}}))
            writer.write(b"0\r\n\r\n")
        elif kind == "invalid_json":
            chunk(writer, b'data: {"id": "x", "choices": [{"index"\xff\n\n')
            writer.write(b"0\r\n\r\n")
        elif kind == "cut":
            chunk(writer, b'data: {"id": "x", "choi')
            await writer.drain()
            writer.close()
            raise ConnectionResetError
        elif kind == "reset":
            await writer.drain()
            await asyncio.sleep(0.001)  # let the good events out first
            writer.transport.abort()
            raise ConnectionResetError
        elif kind == "hang_midway":
            await writer.drain()
            await asyncio.sleep(HANG_SECONDS)
        elif kind == "garbage":
            said: dict[str, Any] = {"delta": {"content": BANG}} if chat else {"text": BANG}
            choice = {"index": 0, **said, "finish_reason": None}
            for _ in range(40):
                chunk(writer, sse(envelope(chat, [], choice)))
            chunk(writer, sse(envelope(chat, [], {**choice, "finish_reason": "stop"})))
            chunk(writer, b"data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")
        else:
            return False
        return True

    async def whole(
        self,
        writer: asyncio.StreamWriter,
        path: str,
        events: list[dict[str, Any]],
        kind: str | None,
    ) -> None:
        """Send the same answer in one piece."""
        answer = join_events(events)
        if kind == "error_after_200":
            await whole(writer, 200, {"error": {"message": "injected"}})
            return
        for choice in answer["choices"]:
            place = choice.get("message", choice)
            field = "content" if "message" in choice else "text"
            if kind == "missing_finish":
                choice["finish_reason"] = None
            if kind == "garbage":
                place[field] = place[field][:20] + BANG * 40
        data = json.dumps(answer).encode()
        if kind in ("invalid_json", "error_midway"):
            data = data[: len(data) // 2]
        mime = b"text/plain" if kind == "wrong_type" else b"application/json"
        head = b"HTTP/1.1 200 OK\r\ncontent-type: " + mime + b"\r\n"
        writer.write(head + b"content-length: %d\r\n\r\n" % len(data))
        if kind in ("cut", "reset", "truncate", "hang_midway"):
            writer.write(data[: len(data) // 2])
            await writer.drain()
            if kind == "hang_midway":
                await asyncio.sleep(HANG_SECONDS)
            writer.transport.abort() if kind == "reset" else writer.close()
            raise ConnectionResetError
        writer.write(data)
        await writer.drain()


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


def logprobs_of(token: int, text: str, *, chat: bool) -> dict[str, Any]:
    """The log probability of one token, as its API shows it."""
    value = -0.5 - token % 7 / 4
    if chat:
        return {"content": [{"token": text, "logprob": value, "top_logprobs": []}]}
    return {"tokens": [text], "token_logprobs": [value], "top_logprobs": [{text: value}]}


def misreport(event: dict[str, Any], kind: str | None) -> None:
    """What a server says wrongly beside its text, in an event of its stream."""
    if kind == "no_usage":
        event.pop("usage", None)
    elif kind == "zero_usage" and "usage" in event:
        event["usage"] |= {"prompt_tokens": 0, "total_tokens": event["usage"]["completion_tokens"]}
    elif kind == "other_name":
        event["model"] = "another"
    elif kind == "no_model":
        del event["model"]
    for choice in event["choices"]:
        if kind == "no_logprobs":
            choice.pop("logprobs", None)
        elif kind == "no_role":
            choice.get("delta", {}).pop("role", None)
        elif kind == "other_finish" and choice["finish_reason"]:
            choice["finish_reason"] = "stop"
        elif kind == "flat_logprobs" and "logprobs" in choice:
            flatten(choice["logprobs"])


def flatten(said: dict[str, Any]) -> None:
    """Log probabilities as another temperature would give them."""
    for one in said.get("content", ()):
        one["logprob"] *= 0.1
    if "token_logprobs" in said:
        said["token_logprobs"] = [value * 0.1 for value in said["token_logprobs"]]


def envelope(chat: bool, prompt: list[int], choice: dict[str, Any] | None) -> dict[str, Any]:
    """An event around one choice."""
    return {
        "id": f"cmpl-{zlib.crc32(repr(prompt).encode()):08x}",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": 1,
        "model": "fake",
        "choices": [choice] if choice else [],
    }


def sse(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"


def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    """One chunk of a chunked body."""
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


async def foreign(
    writer: asyncio.StreamWriter, status: str, mime: str, body: bytes, headers: str
) -> None:
    """An answer of a server that is no backend."""
    length = "" if status.startswith("204") else f"content-length: {len(body)}\r\n"
    head = f"HTTP/1.1 {status}\r\ncontent-type: {mime}\r\n{length}{headers}\r\n"
    writer.write(head.encode() + body)
    with contextlib.suppress(ConnectionError):
        await writer.drain()


async def whole(
    writer: asyncio.StreamWriter, status: int, body: dict[str, Any], headers: str = ""
) -> None:
    """A small JSON answer."""
    data = json.dumps(body).encode()
    writer.write(
        (
            f"HTTP/1.1 {status} {'OK' if status == 200 else 'Injected'}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(data)}\r\n{headers}\r\n"
        ).encode()
        + data
    )
    with contextlib.suppress(ConnectionError):
        await writer.drain()
