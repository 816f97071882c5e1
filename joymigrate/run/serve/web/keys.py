"""Who may come in, how often, and with how many requests at once.

A key has a bucket of `requests_per_minute` that fills evenly, and a count of what runs. The clock
is handed in.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil

from joymigrate.run.serve.web.apis import OPEN
from joymigrate.run.serve.web.errors import Refusal

SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Key:
    """One client's key. `name` stands for it in logs; a limit of 0 is none."""

    secret: str
    name: str = ""
    requests_per_minute: float = 0.0
    concurrent: int = 0


@dataclass(slots=True)
class Use:
    """What a key has taken. `left` is of its bucket, as it was at `at` (seconds)."""

    left: float
    at: float
    running: int = 0


@dataclass(slots=True)
class Keys:
    """The keys that are accepted; none configured: everybody is. `replace` changes them alive."""

    keys: tuple[Key, ...] = ()
    uses: dict[str, Use] = field(default_factory=dict)

    @classmethod
    def of(cls, keys: Iterable[str | Key]) -> Keys:
        """From plain keys, or keys with limits."""
        return cls(list_keys(keys))

    def replace(self, keys: Iterable[str | Key]) -> None:
        """Accept these from now on. What runs goes on; a key that stays keeps its counts."""
        self.keys = list_keys(keys)
        known = {key.secret for key in self.keys}
        self.uses = {secret: use for secret, use in self.uses.items() if secret in known}

    def check(self, path: str, headers: Mapping[str, str]) -> Key | None:
        """The key of a request, None where none is needed; raises `Refusal` (401)."""
        if not self.keys or path in OPEN:
            return None
        shown = shown_key(headers)
        given, match = shown.encode("utf-8", "surrogateescape"), None
        for key in self.keys:
            if hmac.compare_digest(given, key.secret.encode()):
                match = key
        if match is not None:
            return match
        what = (
            "this key is not known here" if shown else "a key is needed: Authorization: Bearer KEY"
        )
        raise Refusal(401, what, headers={"WWW-Authenticate": "Bearer"})

    def enter(self, key: Key, now: float) -> None:
        """Count a request that begins; raises `Refusal` (429) where the key has had enough."""
        full = max(1.0, key.requests_per_minute)
        use = self.uses.get(key.secret)
        if use is None:
            use = self.uses[key.secret] = Use(full, now)
        if key.concurrent and use.running >= key.concurrent:
            raise Refusal(
                429, f"this key may have {key.concurrent} requests at once",
                code="too_many_at_once", headers={"Retry-After": "1"},
            )  # fmt: skip
        if key.requests_per_minute:
            rate = key.requests_per_minute / SECONDS
            use.left, use.at = min(full, use.left + (now - use.at) * rate), now
            if use.left < 1:
                wait = ceil((1 - use.left) / rate)
                raise Refusal(
                    429, f"this key may send {key.requests_per_minute:g} requests a minute",
                    code="rate_limited", headers={"Retry-After": str(wait)},
                )  # fmt: skip
            use.left -= 1
        use.running += 1

    def leave(self, key: Key) -> None:
        """Count a request that has ended."""
        use = self.uses.get(key.secret)
        if use is not None and use.running:
            use.running -= 1


def list_keys(keys: Iterable[str | Key]) -> tuple[Key, ...]:
    """Keys with limits, from keys with and without."""
    return tuple(Key(key) if isinstance(key, str) else key for key in keys)


def shown_key(headers: Mapping[str, str]) -> str:
    """The key that a request shows: `Authorization: Bearer KEY`, else `X-Api-Key`."""
    kind, _, key = headers.get("Authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else headers.get("X-Api-Key", "")
