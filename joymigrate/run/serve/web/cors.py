"""Which pages of other origins a browser may let talk to a server. None by default."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from joymigrate.errors import JoyError
from joymigrate.schema import setting

METHODS = "GET, POST, OPTIONS"
HEADERS = "Authorization, Content-Type, X-Api-Key, X-Request-Id, X-Session-Id, X-User-Id"
EXPOSED = "X-Request-Id, X-Joymigrate-Upstream, Retry-After"
ANY, NOBODY = "*", "null"  # browsers call files and sandboxed frames null
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s@,*]+")


@dataclass(frozen=True, slots=True)
class Cors:
    """The origins that are let in, such as `https://chat.example.com`; `*` is every one."""

    origins: tuple[str, ...] = setting((), "such as https://a.example.com; * is any", single=True)

    @classmethod
    def of(cls, origins: Iterable[str], where: str | None = None) -> Cors:
        """From what a user wrote; raises `JoyError` for what no browser sends as an origin."""
        plain = tuple(one.rstrip("/") for one in origins)
        for one in plain:
            if one not in (ANY, NOBODY) and not ORIGIN.fullmatch(one):
                raise JoyError(
                    f"'{one}' is no origin: no page would be let in", where=where,
                    help="an origin is a scheme and a host, as https://chat.example.com",
                )  # fmt: skip
        return cls(plain)

    def answer(self, headers: Mapping[str, str]) -> dict[str, str]:
        """What to add to the answer of a request with these headers."""
        origin = headers.get("Origin")
        if not origin or not self.origins:
            return {}
        if ANY in self.origins:
            return {"Access-Control-Allow-Origin": ANY, "Access-Control-Expose-Headers": EXPOSED}
        found = {"Vary": "Origin"}
        if origin in self.origins:
            found["Access-Control-Allow-Origin"] = origin
            found["Access-Control-Expose-Headers"] = EXPOSED
        return found

    def preflight(self, method: str, headers: Mapping[str, str]) -> dict[str, str] | None:
        """The answer to a browser's question beforehand; None for any other request."""
        asks = method == "OPTIONS" and "Access-Control-Request-Method" in headers
        found = self.answer(headers)
        if not asks or "Access-Control-Allow-Origin" not in found:
            return None
        return found | {
            "Access-Control-Allow-Methods": METHODS,
            "Access-Control-Allow-Headers": HEADERS,
            "Access-Control-Max-Age": "600",
        }
