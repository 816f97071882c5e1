"""Answers of the gateway itself, in the form that the API's clients understand."""

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


def refuse(path: str, refusal: HttpRefusal) -> web.Response:
    """A refusal in the words of the API that was called; `path` may have its query."""
    made = messages.refuse(path.partition("?")[0], refusal)
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
