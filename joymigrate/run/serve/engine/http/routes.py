"""Which handler answers which path; unknown paths and methods get a JSON error."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from joymigrate.run.serve.engine.http import (
    catalogue,
    chat,
    completions,
    embeddings,
    openapi,
    scores,
)
from joymigrate.run.serve.engine.http.anthropic import answer as anthropic
from joymigrate.run.serve.engine.http.responses import answer as responses
from joymigrate.run.serve.engine.http.triton import infer, metadata
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.messages import Reply

Handler = Callable[..., Awaitable[Reply]]
M = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?"


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A method, a path (an expression where it has parts that vary), and who answers."""

    method: str
    path: str
    handler: Handler


FIXED = (
    HttpRoute("GET", "/health", catalogue.health),
    HttpRoute("GET", "/ping", catalogue.health),
    HttpRoute("POST", "/ping", catalogue.health),
    HttpRoute("GET", "/ready", catalogue.ready),
    HttpRoute("GET", "/metrics", catalogue.metrics),
    HttpRoute("GET", "/version", catalogue.version),
    HttpRoute("GET", "/openapi.json", openapi.reply),
    HttpRoute("GET", "/v1/models", catalogue.models),
    HttpRoute("POST", "/v1/completions", completions.answer),
    HttpRoute("POST", "/v1/chat/completions", chat.answer),
    HttpRoute("POST", "/v1/responses", responses.answer),
    HttpRoute("POST", "/v1/messages", anthropic.answer),
    HttpRoute("POST", "/v1/messages/count_tokens", anthropic.count),
    HttpRoute("POST", "/v1/embeddings", embeddings.answer),
    HttpRoute("POST", "/v1/score", scores.score),
    HttpRoute("POST", "/score", scores.score),
    HttpRoute("POST", "/v1/rerank", scores.rerank),
    HttpRoute("POST", "/v2/rerank", scores.rerank),
    HttpRoute("POST", "/rerank", scores.rerank),
    HttpRoute("POST", "/tokenize", catalogue.tokenize),
    HttpRoute("POST", "/detokenize", catalogue.detokenize),
    HttpRoute("GET", "/v2", metadata.server),
    HttpRoute("GET", "/v2/health/live", metadata.live),
    HttpRoute("GET", "/v2/health/ready", metadata.ready),
    HttpRoute("GET", "/v2/models/stats", metadata.stats),
    HttpRoute("POST", "/v2/repository/index", metadata.index),
)
VARYING = (
    HttpRoute("GET", r"/v1/models/(?P<name>.+)", catalogue.model),
    HttpRoute("GET", M, metadata.model),
    HttpRoute("GET", M + "/ready", metadata.model_ready),
    HttpRoute("GET", M + "/config", metadata.config),
    HttpRoute("GET", M + "/stats", metadata.stats),
    HttpRoute("POST", M + "/infer", infer.infer),
    HttpRoute("POST", M + "/generate", infer.generate),
    HttpRoute("POST", M + "/generate_stream", infer.generate_stream),
    HttpRoute(
        "POST", r"/v2/repository/models/(?P<model>[^/]+)/(?P<what>load|unload)", metadata.load
    ),
)
BY_PATH: dict[str, dict[str, Handler]] = {}
for _route in FIXED:
    BY_PATH.setdefault(_route.path, {})[_route.method] = _route.handler
PATTERNS = tuple((re.compile(route.path), route) for route in VARYING)


def find(method: str, raw_path: str) -> tuple[Handler, dict[str, Any]]:
    """The handler of a raw path and the parts of it; raises `HttpRefusal` (404, 405)."""
    path = raw_path.rstrip("/") or "/"
    method = "GET" if method == "HEAD" else method
    fixed = BY_PATH.get(path)
    if fixed is not None:
        if method in fixed:
            return fixed[method], {}
        raise wrong_method(method, path, fixed)
    allowed = []
    for pattern, route in PATTERNS:
        match = pattern.fullmatch(path)
        if match is None:
            continue
        if route.method == method:
            parts = match.groupdict()
            return route.handler, {k: v and unquote(v) for k, v in parts.items()}
        allowed.append(route.method)
    if allowed:
        raise wrong_method(method, path, allowed)
    raise HttpRefusal(404, f"nothing is here: {method} {path}")


def wrong_method(method: str, path: str, allowed: Any) -> HttpRefusal:
    """405, and which methods there are."""
    names = ", ".join(sorted(allowed))
    return HttpRefusal(405, f"{path} takes {names}, not {method}", headers={"Allow": names})
