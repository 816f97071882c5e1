"""Which handler answers which path."""

from __future__ import annotations

from joymigrate.run.serve.engine.http import (
    catalogue,
    chat,
    completions,
    embeddings,
    openapi,
    scores,
    triton,
)
from joymigrate.run.serve.engine.http.anthropic import answer as anthropic
from joymigrate.run.serve.engine.http.responses import answer as responses
from joymigrate.run.serve.kserve.protocol import kserve_routes
from joymigrate.run.serve.web.paths import HttpRoute, PathTable

ROUTES = PathTable((
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
    HttpRoute("GET", r"/v1/models/(?P<name>.+)", catalogue.model),
    *kserve_routes(triton.EngineModel, triton.GENERATE),
))  # fmt: skip
