"""Who may come in: keys, and a bounded queue. Pure but for the numbers it is handed."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from joymigrate.run.serve.engine.http.errors import Refusal

OPEN = ("/health", "/ready", "/ping", "/metrics", "/v2/health/live", "/v2/health/ready")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may take. `queue` counts texts that wait behind the running ones."""

    body_bytes: int = 32 * 2**20
    body_seconds: float = 30.0
    queue: int = 256
    drain_seconds: float = 30.0
    stall_seconds: float = 60.0  # a client that reads nothing for so long is cut off
    retry_after_seconds: int = 1


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that are accepted; none configured: everybody is."""

    keys: tuple[str, ...] = ()

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        """Refuse a request without a known key. Health and metrics need none."""
        if not self.keys or path in OPEN:
            return
        shown = headers.get("Authorization", "")
        kind, _, key = shown.partition(" ")
        key = key.strip() if kind.lower() == "bearer" else headers.get("X-Api-Key", "")
        if any(hmac.compare_digest(key.encode(), known.encode()) for known in self.keys):
            return
        what = "this key is not known here" if key else "a key is needed: Authorization: Bearer KEY"
        raise Refusal(401, what, headers={"WWW-Authenticate": "Bearer"})


def admit(waiting: int, texts: int, limits: Limits) -> None:
    """Refuse `texts` more when the queue is full; the client is told when to come again."""
    if waiting and waiting + texts > limits.queue:
        raise Refusal(
            429,
            f"{waiting} requests wait already; the queue holds {limits.queue}",
            headers={"Retry-After": str(limits.retry_after_seconds)},
        )
