"""The front door before an engine of somebody else: its OpenAI API as it is, and Triton on top.

Keys, request log, /health, /ready, the KServe v2 endpoints and the drain are ours; what belongs to
the OpenAI API is handed on byte by byte, so that whatever that engine can do, it can do here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from joymigrate.errors import Exit, JoyError
from joymigrate.run.serve.engine.http.streaming import OpenStream
from joymigrate.run.serve.engine.http.triton import GENERATE, Done, TextModel
from joymigrate.run.serve.engine.launch import Child
from joymigrate.run.serve.kserve.protocol import kserve_routes
from joymigrate.run.serve.web import errors
from joymigrate.run.serve.web.answering import answer_request, log_request
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.keys import Key, Keys
from joymigrate.run.serve.web.limits import HttpLimits
from joymigrate.run.serve.web.messages import EVENTS, Ask, Reply, data, event
from joymigrate.run.serve.web.paths import PathTable
from joymigrate.run.serve.web.server import Server, reload_of
from joymigrate.run.serve.web.signals import until_ended
from joymigrate.run.serve.web.site import Front

log = logging.getLogger("joymigrate.serve")
OWN = ("/health", "/ping", "/ready")
NOT_SENT_ON = frozenset(
    ("host", "connection", "content-length", "transfer-encoding", "authorization", "x-api-key",
     "accept-encoding", "content-encoding", "keep-alive", "te", "trailer", "upgrade", "expect")
)  # fmt: skip
NOT_TAKEN_OVER = frozenset(
    ("connection", "content-length", "transfer-encoding", "keep-alive", "content-type", "server",
     "date", "content-encoding")
)  # fmt: skip
CONNECT_SECONDS = 5.0


class Proxy:
    """A front door and the child behind it."""

    def __init__(
        self,
        child: Child,
        host: str,
        port: int,
        keys: tuple[str | Key, ...],
        limits: HttpLimits | None = None,
        front: Front | None = None,
    ) -> None:
        self.child = child
        self.keys = Keys.of(keys)
        self.limits = limits or HttpLimits()
        self.name = child.wish.name
        self.draining = False
        self.session: aiohttp.ClientSession | None = None
        self.server = Server(self, host, port, front)

    # What `Server` asks of a service

    async def answer(self, ask: Ask) -> Reply:
        """Answer a request; never raises but when it is cancelled."""
        return await answer_request(ask, self.keys, self.route, unexpected=502)

    def record(self, ask: Ask, status: int, *, gone: bool = False) -> None:
        """Write a request to the log."""
        outcome = "client_closed" if gone else "ok" if status < 400 else "error"
        log_request(ask, status, outcome, quiet=outcome == "ok" and ask.method == "GET")

    async def close(self) -> None:
        """End the child."""
        if self.session is not None:
            await self.session.close()
        await self.child.stop()

    def trouble(self) -> str | None:
        """Why requests are not taken, or None."""
        if self.draining:
            return "stopping: no new requests are taken"
        return None if self.child.alive else f"{self.child.launcher.name} ended"

    # Life

    async def run(self) -> int:
        """Start the child, serve, stop both; raises `JoyError` when the child ends by itself."""
        async with until_ended(reload_of(self.server)) as (ended, hurried):
            start = asyncio.ensure_future(self.child.start())
            stopped = asyncio.ensure_future(ended.wait())
            await asyncio.wait((start, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not start.done():
                start.cancel()
                await asyncio.gather(start, return_exceptions=True)
                await self.close()
                return Exit.OK
            start.result()
            self.session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                connector=aiohttp.TCPConnector(limit=0),
                read_bufsize=2**18,
            )
            try:
                await self.server.start()
            except JoyError:
                await self.close()
                raise
            log.info("listening on %s for %s", self.server.url, self.child.launcher.name)
            died = asyncio.ensure_future(self.child.wait())
            await asyncio.wait((died, stopped), return_when=asyncio.FIRST_COMPLETED)
            fate = self.child.died() if died.done() and not stopped.done() else None
            await self.server.stop(hurried)
            stopped.cancel()
            if fate is not None:
                raise fate
            return Exit.OK

    # Requests

    async def route(self, ask: Ask) -> Reply:
        """Our own pages, Triton's, or the child's."""
        path = ask.path.rstrip("/")
        if path in OWN or path in ("/v2/health/live", "/v2/health/ready"):
            trouble = self.trouble()
            if trouble is not None and path != "/v2/health/live":
                raise HttpRefusal(503, trouble)
            return Reply(200) if path.startswith("/v2") else data({"status": "ready"})
        if self.draining:
            raise HttpRefusal(
                503, "stopping: no new requests are taken", headers={"Retry-After": "5"}
            )
        if path == "/v2" or path.startswith("/v2/"):
            handler, parts = PATHS.find(ask.method, path)
            return await handler(self, ask, **parts)
        return await self.hand_on(ask)

    async def hand_on(self, ask: Ask) -> Reply:
        """The child's answer, byte by byte."""
        headers = {k: v for k, v in ask.headers.items() if k.lower() not in NOT_SENT_ON}
        response = await self.ask_child(ask.method, ask.path, ask.body, headers)
        kept = {k: v for k, v in response.headers.items() if k.lower() not in NOT_TAKEN_OVER}
        kind = response.headers.get("Content-Type", "application/json")
        if kind.startswith(EVENTS):
            return Reply(response.status, OpenStream(None, self.pieces(response)), EVENTS, kept)
        async with response:
            try:
                body = await response.read()
            except aiohttp.ClientError as error:
                raise HttpRefusal(502, f"the engine broke off: {error}") from None
        return Reply(response.status, body, kind, kept)

    async def pieces(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        """A stream; when it breaks, its reader is told."""
        try:
            async for piece in response.content.iter_any():
                yield piece
        except aiohttp.ClientError as error:
            yield event(errors.openai(HttpRefusal(502, f"the engine broke off: {error}")))
        finally:
            response.close()

    async def ask_child(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> aiohttp.ClientResponse:
        """Send something to the child."""
        assert self.session is not None
        try:
            return await self.session.request(
                method, self.child.url + path, data=body or None, headers=headers,
                allow_redirects=False,
            )  # fmt: skip
        except (aiohttp.ClientError, OSError) as error:
            raise HttpRefusal(502, f"the engine does not answer: {error}") from None

    async def completions(self, text: str, settings: dict[str, Any]) -> aiohttp.ClientResponse:
        """The child's answer to a text; raises `HttpRefusal` with its own words."""
        asked = {key: value for key, value in settings.items() if key != "exclude_input_in_output"}
        asked["echo"] = settings.get("exclude_input_in_output") is False
        body = orjson.dumps({"model": self.name, "prompt": text, **asked})
        kind = {"Content-Type": "application/json"}
        response = await self.ask_child("POST", "/v1/completions", body, kind)
        if response.status != 200:
            async with response:
                raise HttpRefusal(response.status, message_of(await response.read()))
        return response


class ChildModel(TextModel):
    """The child's model: its /v1/completions answers."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy, self.names = proxy, (proxy.name,)

    def trouble(self) -> str | None:
        """Why requests are not taken now."""
        return self.proxy.trouble()

    async def open(
        self, ask: Ask, texts: Sequence[str], rows: Sequence[dict[str, Any]], *, streamed: bool
    ) -> list[ChildJob]:
        """Jobs; that of a stream has begun, so that a refusal is one."""
        jobs = [ChildJob(self.proxy, text, row) for text, row in zip(texts, rows, strict=True)]
        if streamed:
            await jobs[0].begin()
        return jobs


@dataclass(slots=True)
class ChildJob:
    """A text that the child continues."""

    proxy: Proxy
    text: str
    settings: dict[str, Any]
    done: Done = field(default_factory=Done)
    stream: bool = False
    response: aiohttp.ClientResponse | None = None

    async def begin(self) -> None:
        """Ask for a stream."""
        asked = {**self.settings, "stream": True}
        self.response = await self.proxy.completions(self.text, asked)

    async def run(self) -> Done:
        """One whole text."""
        asked = {**self.settings, "stream": False}
        async with await self.proxy.completions(self.text, asked) as response:
            found = orjson.loads(await response.read())
        choice, usage = found["choices"][0], found.get("usage") or {}
        return Done(
            choice["text"], choice.get("finish_reason") or "",
            usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0),
        )  # fmt: skip

    async def pieces(self) -> AsyncGenerator[str, None]:
        """The child's events."""
        response = self.response
        assert response is not None
        try:
            async for line in response.content:
                payload = line.strip().removeprefix(b"data:").strip()
                if not line.startswith(b"data:") or payload == b"[DONE]":
                    continue
                found = orjson.loads(payload)
                if found.get("error"):
                    raise HttpRefusal(502, message_of(payload))
                for choice in found.get("choices") or ():
                    self.done.reason = choice.get("finish_reason") or ""
                    yield choice.get("text") or ""
        except (aiohttp.ClientError, orjson.JSONDecodeError) as error:
            raise HttpRefusal(502, f"the engine broke off: {error}") from None
        finally:
            response.close()


PATHS = PathTable(kserve_routes(ChildModel, GENERATE))


def message_of(body: bytes) -> str:
    """The words of an engine's error, whatever its form."""
    with contextlib.suppress(orjson.JSONDecodeError, AttributeError, TypeError):
        found = orjson.loads(body)
        inner = found.get("error") or found
        words = inner.get("message") if isinstance(inner, dict) else inner
        return str(words or found)
    return body[:500].decode("utf-8", "replace")
