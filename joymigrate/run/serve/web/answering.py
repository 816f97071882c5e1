"""What every server does around its routes: the key, refusals as the API words them, the count."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from joymigrate.run.serve.web import messages
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.keys import Keys
from joymigrate.run.serve.web.messages import Ask, Reply

log = logging.getLogger("joymigrate.serve")


def as_refusal(error: Exception) -> HttpRefusal | None:
    """An error that is a refusal; None for one that nobody expects."""
    return error if isinstance(error, HttpRefusal) else None


def refusal_from(
    error: Exception,
    what: str,
    refusal_of: Callable[[Exception], HttpRefusal | None] = as_refusal,
    status: int = 500,
) -> HttpRefusal:
    """The refusal that an error means; one that nobody expects goes to the log as `what`."""
    refusal = refusal_of(error)
    if refusal is None:
        log.exception(what)
        refusal = HttpRefusal(status, f"{type(error).__name__}: {error}")
    return refusal


async def answer_request(
    ask: Ask,
    keys: Keys,
    route: Callable[[Ask], Awaitable[Reply]],
    *,
    refusal_of: Callable[[Exception], HttpRefusal | None] = as_refusal,
    unexpected: int = 500,
) -> Reply:
    """What `route` says, or why it is refused; never raises but when it is cancelled.

    `refusal_of` words a server's own errors, `unexpected` is the status of all others.
    """
    try:
        keys.check(ask.path, ask.headers)
        reply = await route(ask)
    except Exception as error:
        what = f"a request failed: {ask.method} {ask.path}"
        refusal = refusal_from(error, what, refusal_of, unexpected)
        reply = messages.refuse(ask.path, refusal)
    reply.headers.setdefault("X-Request-Id", ask.called or ask.id)
    return reply


def outcome_of(status: int, *, gone: bool) -> str:
    """What became of a request, as metrics and logs call it."""
    if gone:
        return "client_closed"
    if status < 400:
        return "ok"
    if status in (401, 429, 503):
        return "rejected"
    return "client_error" if status < 500 else "error"


def log_request(ask: Ask, status: int, outcome: str, *, quiet: bool) -> None:
    """Write a request to the log; `quiet`: it is no news."""
    level = logging.DEBUG if quiet else logging.INFO if status < 500 else logging.ERROR
    if not log.isEnabledFor(level):
        return
    log.log(
        level,
        "%s %s %s",
        ask.method,
        ask.path,
        status,
        extra={
            "fields": {
                "request": ask.called or ask.id,
                "method": ask.method,
                "path": ask.path,
                "status": status,
                "outcome": outcome,
                "seconds": round(time.perf_counter() - ask.started, 6),
                **ask.notes,
            }
        },
    )
