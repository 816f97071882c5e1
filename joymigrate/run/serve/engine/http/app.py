"""One request → one reply, whatever happens: the whole server but for its sockets."""

from __future__ import annotations

import time
from dataclasses import dataclass

from joymigrate.run.serve.engine.http import routes
from joymigrate.run.serve.engine.http.error_events import refusal_of
from joymigrate.run.serve.engine.http.resume_request import OURS
from joymigrate.run.serve.engine.http.service import EngineService
from joymigrate.run.serve.web.answering import answer_request, log_request, outcome_of
from joymigrate.run.serve.web.messages import Ask, Reply


@dataclass(slots=True)
class Endpoint(EngineService):
    """A service with its routes: what a web server asks."""

    async def answer(self, ask: Ask) -> Reply:
        """Answer a request; never raises but when it is cancelled."""

        async def route(asked: Ask) -> Reply:
            handler, parts = routes.ROUTES.find(asked.method, asked.path)
            return await handler(self, asked, **parts)

        reply = await answer_request(ask, self.keys, route, refusal_of=refusal_of)
        reply.headers.setdefault(OURS, "1")
        return reply

    def record(self, ask: Ask, status: int, *, gone: bool = False) -> None:
        """Count a request, and write it to the log."""
        outcome = outcome_of(status, gone=gone)
        if ask.method != "GET":  # pages and health checks are no work
            self.meters.outcomes[outcome].add()
        if outcome == "ok" and "finish" in ask.notes:
            self.last_ms = int(time.time() * 1000)
        log_request(ask, status, outcome, quiet=outcome == "ok" and ask.method == "GET")
