"""Which handler answers which path; unknown paths and methods get a JSON error."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.messages import Reply

Handler = Callable[..., Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A method, a path (an expression where it has parts that vary), and who answers."""

    method: str
    path: str
    handler: Handler


class PathTable:
    """The routes of a server."""

    def __init__(self, routes: Iterable[HttpRoute]) -> None:
        self.fixed: dict[str, dict[str, Handler]] = {}
        self.varying: dict[str, dict[str, Handler]] = {}
        for route in routes:
            table = self.varying if "(?P<" in route.path else self.fixed
            table.setdefault(route.path, {})[route.method] = route.handler
        self.patterns = [(re.compile(path), row) for path, row in self.varying.items()]

    def find(self, method: str, raw_path: str) -> tuple[Handler, dict[str, Any]]:
        """The handler of a raw path and the parts of it; raises `HttpRefusal` (404, 405)."""
        path = raw_path.rstrip("/") or "/"
        method = "GET" if method == "HEAD" else method
        handlers, parts = self.fixed.get(path), {}
        if handlers is None:
            for pattern, row in self.patterns:
                match = pattern.fullmatch(path)
                if match is not None:
                    handlers = row
                    parts = {k: v and unquote(v) for k, v in match.groupdict().items()}
                    break
        if handlers is None:
            raise HttpRefusal(404, f"there is no {path}")
        if method not in handlers:
            names = ", ".join(sorted(handlers))
            raise HttpRefusal(405, f"{path} takes {names}, not {method}", headers={"Allow": names})
        return handlers[method], parts
