"""What comes in and what goes out, without a socket: the server and the gateway both use it."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from joymigrate.run.serve.web import apis, errors
from joymigrate.run.serve.web.errors import HttpRefusal

JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"


@dataclass(slots=True)
class Ask:
    """One request, its body already read and unpacked. `headers` are looked up in any case."""

    method: str
    path: str  # decoded, without the query
    headers: Mapping[str, str]
    body: bytes = b""
    query: Mapping[str, str] = field(default_factory=dict)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: float = field(default_factory=time.perf_counter)  # seconds on the process's clock
    notes: dict[str, Any] = field(default_factory=dict)  # for the request log: model, tokens …
    called: str = ""  # what the client calls the request: two may carry the same name

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; raises `HttpRefusal`."""
        try:
            found = orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise HttpRefusal(
                400, f"the body is not valid JSON: {error}", code="invalid_json"
            ) from None
        if not isinstance(found, dict):
            raise HttpRefusal(400, "the body is a JSON object", code="invalid_json")
        return found


class StreamBody(Protocol):
    """The body of a stream; `aclose` ends it when nobody listens any more."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...


@dataclass(slots=True)
class Reply:
    """An answer: whole, or a stream of pieces."""

    status: int = 200
    body: bytes | StreamBody = b""
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)


def data(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """Any value as JSON."""
    return Reply(status, dumps(value), JSON, dict(headers or {}))


def refuse(path: str, refusal: HttpRefusal) -> Reply:
    """A refusal in the words of the API that was called."""
    return data(errors.WORDS[apis.words_of(path)](refusal), refusal.status, refusal.headers)


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + dumps(value) + b"\n\n"


def dumps(value: Any) -> bytes:
    """JSON, also of what orjson alone refuses: numbers beyond 64 bits, keys that are no text."""
    try:
        return orjson.dumps(value)
    except TypeError:
        import json

        return json.dumps(value, ensure_ascii=False).encode()


DONE = b"data: [DONE]\n\n"
