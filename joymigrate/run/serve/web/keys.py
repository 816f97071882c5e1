"""Who may come in, how often, with how many requests at once, and for how many tokens.

A key has a bucket of requests and one of tokens, which fill evenly over a minute, and a count of
what runs. Tokens are paid when they are known, at the end: a key whose bucket is empty waits. The
clock is handed in.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil

from joymigrate.errors import JoyError
from joymigrate.run.serve.web.apis import OPEN
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.schema import setting

SECONDS = 60.0
FROM_ENVIRONMENT = "as it stands, or env:NAME"


@dataclass(frozen=True, slots=True)
class Key:
    """One client's key; in a file a bare text is a key without limits."""

    SHORT = "key"

    secret: str = setting(help=f"the key, {FROM_ENVIRONMENT}", words=True, key="key")
    name: str = setting("", "what logs call the client", words=True)
    requests_per_minute: float = setting(0.0, "at most so many; 0 is no limit", least=0)
    tokens_per_minute: float = setting(0.0, "of prompts and answers; 0 is no limit", least=0)
    concurrent: int = setting(0, "at most so many at once; 0 is no limit", least=0)

    def __post_init__(self) -> None:
        if not self.secret:
            raise JoyError("an item of keys has no key", where="key", help="key: env:NAME")


@dataclass(slots=True)
class Bucket:
    """What is left of a minute's budget, as it was at `at` (seconds); it may be overdrawn."""

    left: float
    at: float

    def wait(self, per_minute: float, wanted: float, now: float) -> int:
        """Fill it; whole seconds until `wanted` is there, 0 where it is."""
        rate = per_minute / SECONDS
        full = max(wanted, per_minute)
        self.left, self.at = min(full, self.left + (now - self.at) * rate), now
        return max(0, ceil((wanted - self.left) / rate))


@dataclass(slots=True)
class KeyUsage:
    """What a key has taken."""

    requests: Bucket
    tokens: Bucket
    running: int = 0


@dataclass(slots=True)
class Keys:
    """The keys that are accepted; none configured: everybody is. `replace` changes them alive."""

    keys: tuple[Key, ...] = ()
    uses: dict[str, KeyUsage] = field(default_factory=dict)

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
        """The key of a request, None where none is needed; raises `HttpRefusal` (401)."""
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
        raise HttpRefusal(401, what, headers={"WWW-Authenticate": "Bearer"})

    def enter(self, key: Key, now: float) -> None:
        """Count a request that begins; raises `HttpRefusal` (429) where the key has had enough."""
        use = self.uses.get(key.secret)
        if use is None:
            full = Bucket(max(1.0, key.requests_per_minute), now)
            use = self.uses[key.secret] = KeyUsage(full, Bucket(key.tokens_per_minute, now))
        if key.concurrent and use.running >= key.concurrent:
            raise HttpRefusal(
                429, f"this key may have {key.concurrent} requests at once",
                code="too_many_at_once", headers={"Retry-After": "1"},
            )  # fmt: skip
        for what, bucket, per_minute in (
            ("requests", use.requests, key.requests_per_minute),
            ("tokens", use.tokens, key.tokens_per_minute),
        ):
            if per_minute and (wait := bucket.wait(per_minute, 1.0, now)):
                raise HttpRefusal(
                    429, f"this key may send {per_minute:g} {what} a minute",
                    code="rate_limited", headers={"Retry-After": str(wait)},
                )  # fmt: skip
        use.requests.left -= 1
        use.running += 1

    def leave(self, key: Key, tokens: int) -> None:
        """Count a request that has ended, and the `tokens` that it took."""
        use = self.uses.get(key.secret)
        if use is not None and use.running:
            use.running -= 1
            use.tokens.left -= tokens


def list_keys(keys: Iterable[str | Key]) -> tuple[Key, ...]:
    """Keys with limits, from keys with and without."""
    return tuple(Key(key) if isinstance(key, str) else key for key in keys)


def shown_key(headers: Mapping[str, str]) -> str:
    """The key that a request shows: `Authorization: Bearer KEY`, else `X-Api-Key`."""
    kind, _, key = headers.get("Authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else headers.get("X-Api-Key", "")
