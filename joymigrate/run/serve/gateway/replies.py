"""Answers of the gateway itself, in the form that OpenAI clients understand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from joymigrate.run.serve.web import messages
from joymigrate.run.serve.web.errors import HttpRefusal

KEPT_OUT = frozenset(
    ("connection", "keep-alive", "transfer-encoding", "content-length", "te", "trailer", "upgrade")
)


def error(
    status: int, message: str, code: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    """An error object. `code` is stable; `message` is for people."""
    kind = "invalid_request_error" if status < 500 else "upstream_error"
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return web.Response(
        status=status,
        body=orjson.dumps(body),
        content_type="application/json",
        headers=dict(headers or {}),
    )


def refuse(path: str, refusal: HttpRefusal) -> web.Response:
    """A refusal in the words of the API that was called."""
    made = messages.refuse(path, refusal)
    assert isinstance(made.body, bytes)
    return web.Response(status=made.status, body=made.body, content_type=made.content_type,
                        headers=made.headers)  # fmt: skip


def data(value: Any, status: int = 200) -> web.Response:
    """Any value as JSON."""
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json")


def passed_on(headers: Mapping[str, str], upstream: str) -> dict[str, str]:
    """The headers of a backend's answer that go to the client, and which backend it was."""
    kept = {name: value for name, value in headers.items() if name.lower() not in KEPT_OUT}
    kept["X-Joymigrate-Upstream"] = upstream
    return kept
