"""Connections of clients: JSON for what is no HTTP, and a limit on the time a head may take."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from aiohttp import web, web_protocol

from joymigrate.run.serve.web import errors
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.messages import dumps


class Connection(web_protocol.RequestHandler):
    """One connection. `since` is when the head that is awaited began to be awaited, on the loop's
    clock; 0 while nothing is awaited: a request is being served, or the client may rest."""

    __slots__ = ("since",)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.since = self._loop.time()
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.has_request:
            self.since = 0.0
        elif not self.since:
            self.since = self._loop.time()

    @property
    def has_request(self) -> bool:
        """Whether a request is here that is not answered yet."""
        return bool(self._messages) or self._current_request is not None

    @property
    def busy(self) -> bool:
        """Whether a request is here or may be on its way: the client does not rest."""
        return bool(self.since) or self.has_request

    def give_up(self) -> None:
        """Close a connection whose head does not end."""
        if self.transport is not None:
            body = dumps(errors.openai(HttpRefusal(408, "the head of the request did not arrive")))
            head = (
                "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was under way")
        phrase = HTTPStatus(status).phrase
        said = (message or phrase).strip().splitlines()[0] if status < 500 else phrase
        refusal = HttpRefusal(
            status, f"{phrase}: {said}", code="bad_request" if status < 500 else None
        )
        response = web.Response(
            status=status, body=dumps(errors.openai(refusal)), content_type="application/json"
        )
        response.force_close()
        return response


class Connections(web.Server):
    """aiohttp's server with those connections."""

    def __call__(self) -> web_protocol.RequestHandler:
        return Connection(self, loop=self._loop, **self._kwargs)

    @property
    def busy(self) -> int:
        """How many connections are new, have sent a part of a request, or wait for an answer."""
        return sum(
            connection.busy for connection in self.connections if isinstance(connection, Connection)
        )

    def drop_slow_heads(self, limit_seconds: float, stood_still_seconds: float = 0.0) -> int:
        """Close the connections whose head has taken longer; returns how many.

        The time for which this process read nothing is no client's.
        """
        now, dropped = asyncio.get_running_loop().time(), 0
        for connection in list(self.connections):
            since = getattr(connection, "since", 0.0)
            if since and stood_still_seconds > 0 and isinstance(connection, Connection):
                since = connection.since = min(now, since + stood_still_seconds)
            if since and now - since > limit_seconds and isinstance(connection, Connection):
                connection.give_up()
                dropped += 1
        return dropped
