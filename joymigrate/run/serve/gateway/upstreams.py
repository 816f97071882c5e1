"""The backends at run time: which of their servers are up, how much they carry, who waits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from joymigrate.run.serve.gateway.backend import HttpBackend
from joymigrate.run.serve.gateway.settings import GatewayLimits, UpstreamSettings

WHOLE_KEPT, WHOLE_KNOWN = 200, 50  # whole answers by which their time is known
PATIENCE = 20.0  # times the longest of them


class Overloaded(Exception):
    """No free connection in time. Neither the client's nor the backend's mistake."""


@dataclass(slots=True)
class Instance:
    """One server of an upstream."""

    url: str
    up: bool = False
    inflight: int = 0
    streak: int = 0  # equal health answers that contradict `up`
    trouble: str = ""  # why the last health check failed, as the log says it


@dataclass(slots=True)
class Upstream:
    """One backend with its limits. `up` when any of its servers is."""

    settings: UpstreamSettings
    backend: HttpBackend
    limits: GatewayLimits
    instances: list[Instance] = field(default_factory=list)
    inflight: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)
    took: dict[str, deque[float]] = field(default_factory=dict)  # seconds of whole answers by API
    name: str = field(init=False)
    role: str = field(init=False)

    def __post_init__(self) -> None:
        self.instances = [Instance(url) for url in self.settings.urls]
        self.name, self.role = self.settings.name, self.settings.role

    def change(self, settings: UpstreamSettings, contexts: Mapping[str, Any]) -> None:
        """Take up other addresses, another key. Requests that run end where they are."""
        before = {instance.url: instance for instance in self.instances}
        self.instances = [before.get(url) or Instance(url, up=True) for url in settings.urls]
        self.settings = settings
        self.backend.change(settings, contexts.get(settings.name))

    def learn(self, kind: str, seconds: float) -> None:
        """A whole answer of this kind took so long."""
        self.took.setdefault(kind, deque(maxlen=WHOLE_KEPT)).append(seconds)

    def patience(self, kind: str, *, whole: bool) -> float | None:
        """How long a whole answer may take until its first byte: it is computed before, so that
        only the total time and what such answers took bound it. None: the usual limit."""
        if not whole:
            return None
        took = self.took.get(kind, ())
        if len(took) < WHOLE_KNOWN:
            return self.limits.total_seconds
        learned = max(self.limits.first_byte_seconds, PATIENCE * max(took))
        return min(learned, self.limits.total_seconds)

    @property
    def up(self) -> bool:
        for instance in self.instances:  # noqa: SIM110 - asked several times a request
            if instance.up:
                return True
        return False

    @property
    def queued(self) -> int:
        """Requests that wait for a connection."""
        return len(self.waiting)

    def pick(self, tried: list[Instance]) -> Instance | None:
        """The least busy server that was not tried; one that is up before one that is down."""
        if not tried and len(self.instances) == 1:
            return self.instances[0]
        left = [instance for instance in self.instances if instance not in tried]
        if len(left) < 2:
            return left[0] if left else None
        return min(left, key=lambda instance: (not instance.up, instance.inflight))

    async def acquire(self) -> None:
        """Wait for a free connection: in order, not for ever, and not in too long a queue."""
        if self.inflight < self.settings.connections and not self.waiting:
            self.inflight += 1
            return
        if len(self.waiting) >= self.limits.queue:
            raise Overloaded(f"{len(self.waiting)} requests wait for {self.name}")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            await asyncio.wait_for(turn, self.limits.queue_seconds)
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.release()  # the turn came in the same moment: pass it on
            elif turn in self.waiting:
                self.waiting.remove(turn)
            if isinstance(error, asyncio.TimeoutError):
                raise Overloaded(
                    f"no free connection to {self.name} in {self.limits.queue_seconds:g} s"
                ) from None
            raise

    def release(self) -> None:
        """Give a connection back, or on to the one that waits longest."""
        while self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.inflight -= 1
