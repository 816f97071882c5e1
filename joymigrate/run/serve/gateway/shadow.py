"""Mirrors part of the primary's traffic to the standby and compares what the two say.

It starts after the client has its answer, on connections of its own, and drops what it cannot
carry: an answer never changes and never waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from joymigrate.run.serve.gateway import whole
from joymigrate.run.serve.gateway.attempt import Report
from joymigrate.run.serve.gateway.bounds import wilson
from joymigrate.run.serve.gateway.calls import Call, forwarded
from joymigrate.run.serve.gateway.events import PRIMARY, ROLLED_BACK, SECOND, Served
from joymigrate.run.serve.gateway.failures import (
    EMPTY,
    TRUNCATED,
    Broken,
    is_back_pressure,
    of_status,
)
from joymigrate.run.serve.gateway.meters import Meters
from joymigrate.run.serve.gateway.relay import Heard, read_all
from joymigrate.run.serve.gateway.rollout import Rollout
from joymigrate.run.serve.gateway.routing import GOLDEN
from joymigrate.run.serve.gateway.settings import ShadowSettings
from joymigrate.run.serve.gateway.stream import Stream
from joymigrate.run.serve.gateway.upstreams import Upstream

KEPT_PAIRS = 1000
ANSWER_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Pair:
    """One question, two answers. Times in seconds; `divergence` counts characters from 0."""

    same_text: bool
    same_finish: bool
    divergence: int | None
    lengths: tuple[int, int]
    seconds: tuple[float, float]
    first_byte_seconds: tuple[float | None, float | None]


@dataclass(slots=True)
class Shadow:
    """Decides what is mirrored, mirrors it, and keeps the tally."""

    settings: ShadowSettings
    standby: Upstream
    rollout: Rollout
    meters: Meters
    report: Report
    point: float = 0.0
    running: set[asyncio.Task[None]] = field(default_factory=set)
    agreed: int = 0
    compared: int = 0
    same_finish: int = 0
    pairs: deque[Pair] = field(default_factory=lambda: deque(maxlen=KEPT_PAIRS))

    def heard(self, call: Call, heard: Heard) -> None:
        """The primary has answered a client."""
        if heard.upstream.role != PRIMARY or not call.strict or call.method != "POST":
            return
        self.point = (self.point + GOLDEN) % 100
        if self.point >= self.settings.percent:
            return
        if self.rollout.state == ROLLED_BACK or not self.standby.up:
            return
        if len(self.running) >= self.settings.concurrency:
            self.meters.shadowed.of("dropped").add()
            return
        task = asyncio.get_running_loop().create_task(self.mirror(call, heard))
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def mirror(self, call: Call, heard: Heard) -> None:
        """Ask the standby the same and compare."""
        started = time.perf_counter()
        try:
            asked = await self.ask(call)
        except Broken as broken:
            self.tell(broken.kind)
            self.meters.shadowed.of("failed").add()
            return
        if asked is None:
            self.meters.shadowed.of("busy").add()
            return
        text, finish, first = asked
        if heard.text and not text:
            self.tell(EMPTY)
            self.meters.shadowed.of("failed").add()
            return
        self.tell(None)
        seconds = time.perf_counter() - started
        same = text == heard.text
        self.compared += 1
        self.agreed += same
        self.same_finish += finish == heard.finish
        self.meters.shadowed.of("same" if same else "different").add()
        self.pairs.append(
            Pair(
                same,
                finish == heard.finish,
                None if same else divergence(heard.text, text),
                (len(heard.text), len(text)),
                (heard.seconds, seconds),
                (heard.first_byte_seconds, first - started if first else None),
            )
        )

    async def ask(self, call: Call) -> tuple[str, str | None, float | None] | None:
        """The standby's text, its reason to end, when its first byte came; None if it is busy."""
        instance = self.standby.pick([])
        assert instance is not None
        settings = self.standby.settings
        headers = forwarded(call.headers, drop_key=settings.key is not None)
        if settings.key is not None:
            headers["Authorization"] = f"Bearer {settings.key}"
        answer = await self.standby.backend.open(
            instance.url, call.method, call.path, headers, call.body
        )
        try:
            if is_back_pressure(answer.status, answer.headers):
                return None
            failure = of_status(answer.status)
            if failure:
                raise Broken(failure)
            if not answer.headers.get("Content-Type", "").startswith("text/event-stream"):
                body = await read_all(answer, ANSWER_BYTES)
                if answer.status >= 400:
                    return "", f"status_{answer.status}", None
                parsed = whole.judge(body, strict=True)
                return whole.text_of(parsed), whole.finish_of(parsed), None
            stream, first = Stream(), None
            while not stream.done:
                received = await answer.read()
                if not received:
                    if stream.end():
                        raise Broken(stream.failure or TRUNCATED)
                    break
                if first is None:
                    first = time.perf_counter()
                    answer.started()
                stream.feed(received)
                if stream.failure:
                    raise Broken(stream.failure)
            return "".join(stream.pieces), stream.finish[0] if stream.finish else None, first
        finally:
            answer.close()

    def tell(self, failure: str | None) -> None:
        """A mirrored request is evidence about the standby's infrastructure."""
        self.report(
            Served(time.time(), SECOND, failure, 1, self.standby.name, shadow=True),
            lambda: {"upstream": self.standby.name},
        )

    def summary(self) -> dict[str, Any]:
        """Agreement with its 95 % interval, and how the latencies compare."""
        low, high = wilson(self.agreed, self.compared)
        at = sorted(pair.divergence for pair in self.pairs if pair.divergence is not None)
        ratios = sorted(pair.seconds[1] / max(pair.seconds[0], 1e-9) for pair in self.pairs)
        return {
            "schema": "joymigrate.shadow/1",
            "percent": self.settings.percent,
            "compared": self.compared,
            "same_text": self.agreed,
            "agreement": self.agreed / self.compared if self.compared else None,
            "interval": [low, high],
            "same_finish": self.same_finish,
            "first_divergence_median": at[len(at) // 2] if at else None,
            "latency_ratio_median": ratios[len(ratios) // 2] if ratios else None,
        }


def divergence(one: str, other: str) -> int:
    """The first character at which two texts differ."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))
