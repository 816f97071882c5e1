"""A time-out is evidence against a backend only while the gateway itself was running."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from joymigrate.run.serve.gateway.backend import HttpBackend
from joymigrate.run.serve.gateway.health import check_once
from joymigrate.run.serve.gateway.pulse import BEAT_SECONDS, Pulse
from joymigrate.run.serve.gateway.settings import GatewayLimits, HealthSettings, UpstreamSettings
from joymigrate.run.serve.gateway.upstreams import Upstream

from .conftest import HANG_LIMITS, Bench, Table

LIMIT = HANG_LIMITS["first_byte_seconds"]


def stall(after_seconds: float, seconds: float = LIMIT) -> None:
    """Hold up the event loop: what a burst, a slow disk or another process does to it."""
    asyncio.get_running_loop().call_later(after_seconds, time.sleep, seconds)


def failures(bench: Bench) -> int:
    return bench.gateway.rollout.primary.failures


def test_only_the_part_of_a_stall_inside_the_window_counts() -> None:
    pulse = Pulse()
    pulse.beating = True
    pulse.due = 10.0
    pulse.note(12.0)
    pulse.due = 12.05
    pulse.note(12.06)
    pulse.due = 20.0
    assert list(pulse.stalls) == [(12.0, 2.0)], "a beat that comes nearly in time is none"
    assert pulse.stood_still(9.0, 13.0) == 2.0
    assert pulse.stood_still(11.5, 13.0) == 0.5
    assert pulse.stood_still(12.0, 13.0) == 0.0
    assert pulse.stood_still(19.0, 21.0) == 1.0, "the beat that is overdue counts already"
    pulse.beating = False
    assert pulse.stood_still(19.0, 21.0) == 0.0, "who does not beat knows nothing"


@pytest.mark.parametrize("kind", ["hang", "hang_midway"])
def test_a_stall_of_the_gateway_is_no_evidence_against_a_backend(table: Table, kind: str) -> None:
    async def scenario(bench: Bench) -> None:
        stall(0.1)
        answer = await bench.ask()
        assert (answer.outcome, answer.text) == ("ok", bench.expected()), "asked elsewhere"
        assert failures(bench) == 0
        assert bench.gateway.relay.by_name["gpu"].ends["unjudged"].value == 1

    table.run(scenario, gpu={kind: 1.0}, rollout={"start": "manual"})


@pytest.mark.dear
def test_a_backend_that_is_late_itself_is_blamed(table: Table) -> None:
    async def scenario(bench: Bench) -> None:
        stall(0.0)  # long before the question
        await asyncio.sleep(2 * LIMIT)
        answer = await bench.ask()
        assert (answer.outcome, answer.text) == ("ok", bench.expected())
        assert failures(bench) == 1

    table.run(scenario, gpu={"hang": 1.0}, rollout={"start": "manual"})


@pytest.mark.dear
def test_a_health_check_that_the_gateway_missed_changes_no_opinion() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the client goes
        writer.close()

    async def scenario() -> None:
        listener = await asyncio.start_server(silent, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        settings = UpstreamSettings("primary", name="gpu", urls=(url,), health="/health")
        pulse, limits = Pulse(), GatewayLimits()
        beats = asyncio.create_task(pulse.run())
        backend = HttpBackend(settings, limits, pulse=pulse)
        upstream = Upstream(settings, backend, limits)
        upstream.instances[0].up = True
        checks = HealthSettings(timeout_seconds=LIMIT, down_after=1)
        told: list[Any] = []
        tell: Any = lambda *what: told.append(what)  # noqa: E731
        try:
            await asyncio.sleep(2 * BEAT_SECONDS)
            stall(0.05)
            await check_once(upstream, checks, tell)
            assert (upstream.up, told) == (True, [])
            await asyncio.sleep(LIMIT)
            await check_once(upstream, checks, tell)
            assert (upstream.up, len(told)) == (False, 1), "this time the server was silent"
        finally:
            beats.cancel()
            await backend.close()
            listener.close()

    asyncio.run(scenario())
