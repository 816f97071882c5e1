"""An engine inside the gateway's own process as one of its backends: no socket in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joymigrate.run.serve.evidence.failures import FIRST_BYTE, IDLE, RESET, BackendFailure
from joymigrate.run.serve.gateway.settings import GatewayLimits, GatewaySettings, UpstreamSettings

if TYPE_CHECKING:
    from joymigrate.run.serve.engine.http.service import EngineService
    from joymigrate.run.serve.web.messages import Reply


def open_backends(
    settings: GatewaySettings, talk: Callable[[str], None] = lambda line: None
) -> dict[str, EmbeddedBackend]:
    """The backends of the upstreams that name a folder instead of a url. Raises `JoyError`."""
    made = {}
    for upstream in settings.upstreams:
        if upstream.folder is None:
            continue
        talk(f"{upstream.name}: loading {upstream.folder}")
        service = open_engine(upstream, settings.path.resolve().parent)
        info = service.info
        talk(f"{upstream.name}: {info.family} as {info.dtype} on {info.device}")
        made[upstream.name] = EmbeddedBackend(service, settings.limits)
    return made


def open_engine(upstream: UpstreamSettings, folder: Path) -> EngineService:
    """The engine of one upstream; relative folders are relative to the gateway's file."""
    from joymigrate.run.serve.engine.http.service_start import open_service
    from joymigrate.run.serve.engine.types import EngineOptions

    assert upstream.folder is not None
    path = folder / upstream.folder
    options = EngineOptions(dtype=upstream.dtype, device=upstream.device, probe=True)
    names = (upstream.serves,) if upstream.serves else ()
    return open_service(path, options, names=names)


class EmbeddedBackend:
    """The gateway's seam (`backend.Backend`) on the engine's own request handling."""

    def __init__(self, service: EngineService, limits: GatewayLimits) -> None:
        self.service, self.limits = service, limits
        self.resumes = True

    async def open(
        self,
        url: str,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        patience_seconds: float | None = None,
    ) -> EmbeddedAnswer:
        """Hand the request to the engine; raises `BackendFailure`."""
        from multidict import CIMultiDict

        from joymigrate.run.serve.engine.http import app
        from joymigrate.run.serve.web.messages import Ask

        kept = CIMultiDict(
            (name, value) for name, value in headers.items() if name.lower() != "authorization"
        )
        ask = Ask(method, path.partition("?")[0], kept, body)
        try:
            reply = await asyncio.wait_for(
                app.answer(self.service, ask), self.limits.first_byte_seconds
            )
        except (TimeoutError, asyncio.TimeoutError):
            raise BackendFailure(FIRST_BYTE, "the engine said nothing in time") from None
        app.record(self.service, ask, reply.status)
        return EmbeddedAnswer(reply, self.limits.idle_seconds)

    async def check(self, url: str, paths: tuple[str, ...], timeout_seconds: float) -> str | None:
        """What the engine says about itself."""
        return self.service.trouble()

    def change(self, settings: UpstreamSettings, context: object) -> None:
        """Nothing of an engine in this process can change."""

    async def close(self) -> None:
        """Stop the engine."""
        await self.service.engine.close()


class EmbeddedAnswer:
    """An answer whose pieces come from a generator in this process."""

    def __init__(self, reply: Reply, idle_seconds: float) -> None:
        self.status = reply.status
        self.headers: Mapping[str, str] = {"Content-Type": reply.content_type, **reply.headers}
        self.idle_seconds = idle_seconds
        self.pieces: Any = None
        self.rest: list[bytes] = []
        if isinstance(reply.body, bytes):
            self.rest = [reply.body] if reply.body else []
        else:
            self.pieces = reply.body
        self.iterator: AsyncIterator[bytes] | None = self.pieces and aiter(self.pieces)

    async def read(self) -> bytes:
        """The next piece, `b""` at the end; raises `BackendFailure`."""
        if self.rest:
            return self.rest.pop()
        if self.iterator is None:
            return b""
        try:
            return await asyncio.wait_for(anext(self.iterator), self.idle_seconds)
        except StopAsyncIteration:
            self.iterator = None
            return b""
        except (TimeoutError, asyncio.TimeoutError):
            raise BackendFailure(IDLE, "the engine paused for too long") from None
        except RuntimeError as error:
            raise BackendFailure(RESET, str(error)) from None

    def started(self) -> None:
        """The limits of one process need no switching."""

    async def finish(self) -> None:
        """Read what is left, which is nothing but the end."""
        if self.iterator is not None:
            await self.read()

    def close(self) -> None:
        """Let the engine end the text, finished or not."""
        if self.pieces is not None:
            task = asyncio.ensure_future(self.pieces.aclose())
            CLOSING.add(task)
            task.add_done_callback(CLOSING.discard)
            self.pieces = self.iterator = None


CLOSING: set[asyncio.Future[None]] = set()  # a task that nobody holds may vanish
