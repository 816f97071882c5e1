"""The front door before an engine of somebody else: its OpenAI API as it is, and Triton on top.

Keys, request log, /health, /ready, the KServe v2 endpoints and the drain are ours; what belongs to
the OpenAI API is handed on byte by byte, so that whatever that engine can do, it can do here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import orjson

from joymigrate import __version__
from joymigrate.errors import Exit, JoyError
from joymigrate.run.serve.engine.http import app
from joymigrate.run.serve.engine.http.streaming import OpenStream
from joymigrate.run.serve.engine.http.triton import metadata, tensors
from joymigrate.run.serve.engine.http.triton.infer import (
    Done,
    batch,
    outputs_of,
    parameters_of,
    tensor_of,
)
from joymigrate.run.serve.engine.launch import Child
from joymigrate.run.serve.web import errors
from joymigrate.run.serve.web.answering import answer_request
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.keys import Key, Keys
from joymigrate.run.serve.web.limits import HttpLimits
from joymigrate.run.serve.web.messages import EVENTS, Ask, Reply, data, event
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
        app.write(ask, status, "client_closed" if gone else "ok" if status < 400 else "error")

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
            return await self.triton(ask, path)
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

    # Triton

    async def triton(self, ask: Ask, path: str) -> Reply:
        """The KServe v2 endpoints, answered with the child's /v1/completions."""
        parts = path.split("/")[2:]
        if not parts:
            return data({"name": "joymigrate", "version": __version__,
                         "extensions": metadata.EXTENSIONS})  # fmt: skip
        if parts == ["repository", "index"]:
            return data([{"name": self.name, "version": metadata.VERSION, "state": "READY"}])
        if parts[0] != "models" or len(parts) < 2 or parts[1] != self.name:
            raise HttpRefusal(404, f"unknown model or path: {path}")
        rest = parts[4:] if parts[2:3] == ["versions"] else parts[2:]
        if ask.method == "GET" and rest == ["ready"]:
            return Reply(200)
        if ask.method == "GET" and not rest:
            return data(metadata.describe_model(self.name))
        if ask.method == "POST" and rest == ["infer"]:
            return await self.infer(ask)
        if ask.method == "POST" and rest == ["generate"]:
            body = ask.json()
            done = await self.complete(body.pop("text_input", None), settings_of(body))
            return data(answer_of(self.name, done.text))
        if ask.method == "POST" and rest == ["generate_stream"]:
            body = ask.json()
            asked = {**settings_of(body), "stream": True}
            text = body.pop("text_input", None)
            response = await self.completions(text, asked)
            return Reply(200, OpenStream(None, self.translated(response)), EVENTS)
        raise HttpRefusal(404, f"nothing is here: {ask.method} {path}")

    async def infer(self, ask: Ask) -> Reply:
        """Tensors in, tensors out."""
        length = ask.headers.get("Inference-Header-Content-Length")
        header, binary = tensors.header_of(ask.body, length)
        given = {tensor.name: tensor for tensor in tensors.read_inputs(header, binary)}
        wanted = outputs_of(header)
        texts, rows = batch(given, parameters_of(header))
        pairs = zip(texts, rows, strict=True)
        found = await asyncio.gather(*(self.complete(text, row) for text, row in pairs))
        shape = given["text_input"].shape
        made = [tensor_of(name, list(found), shape) for name, _ in wanted]
        default = bool((header.get("parameters") or {}).get("binary_data_output"))
        head: dict[str, Any] = {"model_name": self.name, "model_version": metadata.VERSION}
        if header.get("id") is not None:
            head["id"] = str(header["id"])
        as_bytes = [default if choice is None else choice for _, choice in wanted]
        body, size = tensors.write_body(head, made, as_bytes)
        if size is None:
            return Reply(200, body)
        more = {"Inference-Header-Content-Length": str(size)}
        return Reply(200, body, "application/octet-stream", more)

    async def completions(self, text: Any, settings: dict[str, Any]) -> aiohttp.ClientResponse:
        """The child's answer to a text; raises `HttpRefusal` with its own words."""
        if not isinstance(text, str):
            raise HttpRefusal(400, f"text_input is a text, got {text!r}")
        asked = {key: value for key, value in settings.items() if key != "exclude_input_in_output"}
        asked["echo"] = settings.get("exclude_input_in_output") is False
        body = orjson.dumps({"model": self.name, "prompt": text, **asked})
        kind = {"Content-Type": "application/json"}
        response = await self.ask_child("POST", "/v1/completions", body, kind)
        if response.status != 200:
            async with response:
                raise HttpRefusal(response.status, message_of(await response.read()))
        return response

    async def complete(self, text: Any, settings: dict[str, Any]) -> Done:
        """One whole text."""
        async with await self.completions(text, settings) as response:
            found = orjson.loads(await response.read())
        choice, usage = found["choices"][0], found.get("usage") or {}
        return Done(
            choice["text"], choice.get("finish_reason") or "",
            usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0),
        )  # fmt: skip

    async def translated(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        """The child's events in Triton's form."""
        try:
            async for line in response.content:
                payload = line.strip().removeprefix(b"data:").strip()
                if not line.startswith(b"data:") or payload == b"[DONE]":
                    continue
                found = orjson.loads(payload)
                if found.get("error"):
                    yield event({"error": message_of(payload)})
                    return
                for choice in found.get("choices") or ():
                    yield event(answer_of(self.name, choice.get("text") or ""))
        except (aiohttp.ClientError, orjson.JSONDecodeError) as error:
            yield event({"error": f"the engine broke off: {error}"})
        finally:
            response.close()


def settings_of(body: dict[str, Any]) -> dict[str, Any]:
    """The settings of a generate request: beside text_input, or in `parameters`."""
    parameters = parameters_of(body)
    rest = {k: v for k, v in body.items() if k not in ("text_input", "parameters", "id")}
    return {**parameters, **rest, "stream": False}


def answer_of(model: str, text: str) -> dict[str, Any]:
    """One answer or event."""
    return {"model_name": model, "model_version": metadata.VERSION, "text_output": text}


def message_of(body: bytes) -> str:
    """The words of an engine's error, whatever its form."""
    with contextlib.suppress(orjson.JSONDecodeError, AttributeError, TypeError):
        found = orjson.loads(body)
        inner = found.get("error") or found
        words = inner.get("message") if isinstance(inner, dict) else inner
        return str(words or found)
    return body[:500].decode("utf-8", "replace")
