"""A client's request as the gateway sees it: what kind it is, what it asks for, who asks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from joymigrate.run.serve.gateway.backend import HOP_BY_HOP
from joymigrate.run.serve.gateway.settings import UpstreamSettings
from joymigrate.run.serve.web.apis import ApiRoute
from joymigrate.run.serve.web.telemetry import RequestSpan

# The server unpacked the body while reading it, so its encoding no longer holds.
NOT_SENT_ON = HOP_BY_HOP | {"content-encoding", "x-request-id"}
# What a client shows to the gateway alone, and what `forward` calls it.
PRIVATE = {"authorization": "authorization", "x-api-key": "authorization", "cookie": "cookie"}

# Fields of /v1/responses by which a question is put into a conversation, or runs on as a job.
KEEPING = ("conversation", "background")
USER_HEADERS = ("X-User-Id", "X-User")
SESSION_HEADERS = ("X-Session-Id", "X-Conversation-Id")


@dataclass(slots=True)
class GatewayCall:
    """One request. `parsed` is the JSON body where there is one, `asked` the same as a chat's;
    `point` places it in the ramp."""

    api: ApiRoute
    method: str
    path: str  # with the query
    headers: Mapping[str, str]  # the client's
    body: bytes
    parsed: dict[str, Any] | None
    started: float  # seconds on the process's clock
    id: str = ""  # what client, gateway and backend call it
    settled: bool = False  # what the client got has been counted
    trace: RequestSpan | None = None
    who: str = ""  # the client, where it says so
    share: float = 0.0  # of the traffic that is the standby's as this one's backend was chosen
    counted: Callable[[], tuple[int, int]] | None = None  # tokens of answer and prompt so far
    point: float = 0.0  # 0 to 100: below the standby's weight it belongs to the standby
    strict: bool = field(init=False)  # whether its answer must say why it ended
    asked: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.strict = self.api.speaks
        form, body = self.api.form, self.parsed or {}
        self.asked = body if form is None else form.asked(body)

    @property
    def tokens(self) -> int:
        """Tokens of the prompt and of what was answered so far, as the backend counts them."""
        return sum(self.counted()) if self.counted is not None else 0

    @property
    def chat(self) -> bool:
        """Whether its answer is a message; else it is a text."""
        return self.api.form is not None and self.api.form.chat is True

    @property
    def greedy(self) -> bool:
        """Whether the most probable text was asked for."""
        return self.asked.get("temperature") == 0 or self.asked.get("top_k") == 1

    @property
    def most(self) -> Any:
        """The longest answer that was asked for, in tokens; None: nobody said."""
        body = self.parsed or {}
        names = self.api.form.most if self.api.form is not None else ()
        return next((body[name] for name in reversed(names) if body.get(name) is not None), None)

    @property
    def wants_words(self) -> bool:
        """Whether an answer without a word would be odd."""
        return self.strict and self.method == "POST" and self.most != 0

    @property
    def choices(self) -> int:
        """How many answers are asked for: `n` for each prompt."""
        count = self.asked.get("n")
        return self.prompts * (count if isinstance(count, int) and count > 1 else 1)

    @property
    def searches(self) -> bool:
        """Whether more texts are generated than are given out."""
        return bool(self.asked.get("best_of") or self.asked.get("use_beam_search"))

    @property
    def prompts(self) -> int:
        """How many prompts a completion has. A chat is one, whatever else stands in it."""
        prompts = self.asked.get("prompt") if self.strict and not self.chat else None
        if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int):
            return len(prompts)
        return 1

    @property
    def orders(self) -> bool:
        """Whether it changes what the server does or keeps: asked again, it would do so again."""
        return not self.api.repeats or any(map((self.parsed or {}).get, KEEPING))


def parsed_body(body: bytes) -> dict[str, Any] | None:
    """The JSON object of the body, or None."""
    import orjson  # what a call is needs no extra

    try:
        parsed = orjson.loads(body) if body else None
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def is_object(body: bytes) -> bool:
    """Whether a body that orjson would not take is an object to a more lenient reader."""
    try:
        return isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        return False


def forward_headers(call: GatewayCall, settings: UpstreamSettings) -> dict[str, str]:
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
