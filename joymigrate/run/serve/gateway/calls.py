"""A client's request as the gateway sees it: what kind it is, what it asks for, who asks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from joymigrate.run.serve.gateway.backend import HOP_BY_HOP
from joymigrate.run.serve.gateway.settings import UpstreamSettings
from joymigrate.run.serve.web.telemetry import Trace

# The server unpacked the body while reading it, so its encoding no longer holds.
NOT_SENT_ON = HOP_BY_HOP | {"content-encoding", "x-request-id"}
# What a client shows to the gateway alone, and what `forward` calls it.
PRIVATE = {"authorization": "authorization", "x-api-key": "authorization", "cookie": "cookie"}

CHAT, TEXT, RESPONSES, EMBEDDINGS = "chat", "text", "responses", "embeddings"
TRITON, RANK, OTHER = "triton", "rank", "other"
KINDS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": TEXT,
    "/v1/responses": RESPONSES,
    "/v1/embeddings": EMBEDDINGS,
    "/v1/rank": RANK,
}
STRICT = (CHAT, TEXT)
ASKS = ("infer", "generate", "generate_stream")  # of a Triton model, which may have any name
# Parts of paths by which vLLM, SGLang, Triton and OpenAI's API change what a server does or keeps.
ORDERS = frozenset(
    ("load_lora_adapter", "unload_lora_adapter", "sleep", "wake_up", "pause", "resume", "shutdown",
     "reset_prefix_cache", "reset_mm_cache", "start_profile", "stop_profile", "collective_rpc",
     "scale_elastic_ep", "init_weight_transfer_engine", "update_weights", "flush_cache",
     "clear_hicache", "init_weights_update_group", "update_weights_from_disk",
     "update_weights_from_tensor", "update_weights_from_distributed",
     "release_memory_occupation", "resume_memory_occupation", "pause_generation",
     "continue_generation", "abort_request", "open_session", "close_session",
     "set_internal_state", "configure_logging", "repository", "logging", "setting", "register",
     "unregister", "files", "uploads", "batches", "fine_tuning", "cancel", "conversations",
     "vector_stores", "assistants", "threads")
)  # fmt: skip
# Fields of /v1/responses by which a question is put into a conversation, or runs on as a job.
KEEPING = ("conversation", "background")
USER_HEADERS = ("X-User-Id", "X-User")
SESSION_HEADERS = ("X-Session-Id", "X-Conversation-Id")


@dataclass(slots=True)
class Call:
    """One request. `parsed` is the JSON body where there is one; `point` places it in the ramp."""

    kind: str
    method: str
    path: str  # with the query
    headers: Mapping[str, str]  # the client's
    body: bytes
    parsed: dict[str, Any] | None
    started: float  # seconds on the process's clock
    id: str = ""  # what client, gateway and backend call it
    settled: bool = False  # what the client got has been counted
    trace: Trace | None = None
    point: float = 0.0  # 0 to 100: below the standby's weight it belongs to the standby
    strict: bool = field(init=False)  # whether its stream must say why it ended

    def __post_init__(self) -> None:
        self.strict = self.kind in STRICT

    @property
    def greedy(self) -> bool:
        """Whether the most probable text was asked for."""
        body = self.parsed or {}
        return body.get("temperature") == 0 or body.get("top_k") == 1

    @property
    def wants_words(self) -> bool:
        """Whether an answer without a word would be odd."""
        body = self.parsed or {}
        none = body.get("max_tokens") == 0 or body.get("max_completion_tokens") == 0
        return self.strict and self.method == "POST" and not none

    @property
    def choices(self) -> int:
        """How many answers are asked for: `n` for each prompt."""
        count = (self.parsed or {}).get("n")
        return self.prompts * (count if isinstance(count, int) and count > 1 else 1)

    @property
    def searches(self) -> bool:
        """Whether more texts are generated than are given out."""
        body = self.parsed or {}
        return bool(body.get("best_of") or body.get("use_beam_search"))

    @property
    def prompts(self) -> int:
        """How many prompts a completion has. A chat is one, whatever else stands in it."""
        prompts = (self.parsed or {}).get("prompt") if self.kind == TEXT else None
        if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int):
            return len(prompts)
        return 1

    @property
    def orders(self) -> bool:
        """Whether it changes what the server does or keeps: asked again, it would do so again."""
        parts = self.path.partition("?")[0].split("/")
        if self.kind == TRITON:
            return parts[-1] not in ASKS
        body = self.parsed if self.kind == RESPONSES and self.parsed else {}
        if any(map(body.get, KEEPING)):
            return True
        return not self.strict and not ORDERS.isdisjoint(parts)


def kind_of(path: str) -> str:
    """The kind of API that a path (without query) belongs to."""
    known = KINDS.get(path)
    if known:
        return known
    return TRITON if path.startswith("/v2/models/") else OTHER


def parsed_body(body: bytes, kind: str) -> dict[str, Any] | None:
    """The JSON object of the body, or None."""
    import orjson  # what a call is needs no extra

    if kind == OTHER or not body:
        return None
    try:
        parsed = orjson.loads(body)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def is_object(body: bytes) -> bool:
    """Whether a body that orjson would not take is an object to a more lenient reader."""
    try:
        return isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        return False


def forward_headers(call: Call, settings: UpstreamSettings) -> dict[str, str]:
    """The headers that go on to a backend: the client's without those of this connection, its
    credentials and cookies (unless `forward` names them), and the backend's own key."""
    kept = {
        name: value
        for name, value in call.headers.items()
        if (plain := name.lower()) not in NOT_SENT_ON
        and (plain not in PRIVATE or PRIVATE[plain] in settings.forward)
    }
    kept["Accept-Encoding"] = "identity"
    kept["X-Request-Id"] = call.id
    if settings.key is not None:
        for name in [name for name in kept if name.lower() in ("authorization", "x-api-key")]:
            del kept[name]
        kept["Authorization"] = f"Bearer {settings.key}"
    return kept


def sticky_key(sticky: str, headers: Mapping[str, str], parsed: dict[str, Any] | None) -> str:
    """Who asks, or an empty string where nobody says so."""
    if sticky == "none":
        return ""
    if sticky.startswith("header:"):
        return headers.get(sticky[7:], "")
    body = parsed or {}
    if sticky == "user":
        named = body.get("user") or first(headers, USER_HEADERS)
        return str(named or "")
    named = first(headers, SESSION_HEADERS) or body.get("session_id") or body.get("user")
    return str(named or "")


def first(headers: Mapping[str, str], names: tuple[str, ...]) -> str:
    """The first of these headers that is there."""
    for name in names:
        if name in headers:
            return headers[name]
    return ""
