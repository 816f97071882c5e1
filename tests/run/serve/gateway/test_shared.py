"""Several gateways and one rollout, over a real Redis: nothing is lost, nobody decides alone."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("redis", reason="pip install 'joymigrate[serve]'")

from joymigrate.errors import JoyError
from joymigrate.run.serve.evidence.events import (
    PRIMARY,
    SECOND,
    AnswersCompared,
    Health,
    LedgerGate,
    RolloutOrder,
    RolloutPlan,
    RolloutTick,
    Served,
)
from joymigrate.run.serve.evidence.rollout import Rollout
from joymigrate.run.serve.gateway import settings
from joymigrate.run.serve.gateway.redis_rollout import SharedRollout
from joymigrate.run.serve.gateway.server import Gateway
from tests.run.serve.gateway.fake import Fake


class Redis:
    """A redis-server of this test."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.folder, self.process = folder, None
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        line = [
            *("redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""),
            *("--appendonly", "yes", "--appendfsync", "always", "--dir", str(self.folder)),
        ]
        self.process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.02)
        raise AssertionError("redis-server did not start")

    def stop(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Redis]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    made = Redis(tmp_path)
    yield made
    made.stop()


PLAN = RolloutPlan(min_step_seconds=3600, min_step_pairs=0)


class Member:
    """One gateway's part in it."""

    def __init__(self, url: str, name: str = "test", plan: str = "a") -> None:
        self.rollout = Rollout(PLAN)
        self.changes: list[Any] = []
        self.said: list[str] = []
        self.shared = SharedRollout(
            url, name, self.rollout, {"plan": plan}, self.changes.extend, self.said.append
        )

    async def start(self) -> None:
        await self.shared.start()

    async def kill(self) -> None:
        """As kill -9 does: nothing is written any more."""
        for task in self.shared.tasks:
            task.cancel()
        await asyncio.gather(*self.shared.tasks, return_exceptions=True)
        await self.shared.client.aclose()

    def serve(self, count: int, failure: str | None = None, role: str = SECOND) -> None:
        for _ in range(count):
            self.shared.put(Served(time.time(), role, failure))


Scenario = Callable[[list[Member]], Awaitable[None]]


def run(server: Redis, scenario: Scenario, count: int = 2) -> None:
    async def whole() -> None:
        members = [Member(server.url) for _ in range(count)]
        for member in members:
            await member.start()
        try:
            await scenario(members)
        finally:
            for member in members:
                await member.shared.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


async def until(true: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.02)


def open_ramp(member: Member) -> None:
    member.shared.put(LedgerGate(time.time(), True, "test"))
    member.shared.put(Health(time.time(), SECOND, True))


def test_evidence_of_both_is_one_evidence(server: Redis) -> None:
    async def scenario(members: list[Member]) -> None:
        one, other = members
        open_ramp(one)
        await until(lambda: other.rollout.state == "ramping")
        one.serve(50)
        other.serve(70)
        await until(lambda: one.rollout.total.requests == other.rollout.total.requests == 120)
        for member in members:
            member.serve(30, role=PRIMARY)
        await until(lambda: one.rollout.primary.requests == 60)
        for member in members:  # six failures trip nothing, seven do
            member.serve(4, "status_500")
        await until(lambda: one.rollout.state == other.rollout.state == "rolled_back")
        assert one.rollout.snapshot() == other.rollout.snapshot()

    run(server, scenario)


def test_two_machines_fed_by_three_gateways_at_random_never_part(server: Redis) -> None:
    async def scenario(members: list[Member]) -> None:
        rng = random.Random(1)
        open_ramp(members[0])
        for _ in range(60):
            for member in members:
                now = time.time()
                member.serve(rng.randint(0, 30))
                member.serve(rng.randint(0, 20), role=PRIMARY)
                if rng.random() < 0.02:
                    member.serve(1, "idle")
                member.shared.put(RolloutTick(now))
                member.shared.put(
                    AnswersCompared(now, {"text": rng.random() < 0.02, "slow": False})
                )
                if rng.random() < 0.05:
                    with contextlib.suppress(JoyError):
                        what = rng.choice(["pause", "resume", "rollback", "promote"])
                        await member.shared.order(RolloutOrder(now, what))
            await asyncio.sleep(rng.random() * 0.02)
        await until(lambda: not any(member.shared.waiting for member in members))
        await until(lambda: len({member.shared.last for member in members}) == 1)
        first, *others = (member.rollout.snapshot() for member in members)
        assert all(first == other for other in others)
        assert len(first["changes"]) > 3

    run(server, scenario, 3)


def test_who_is_killed_takes_a_second_of_evidence_with_it_at_most(server: Redis) -> None:
    async def scenario(members: list[Member]) -> None:
        one, other = members
        open_ramp(one)
        one.serve(40)
        await asyncio.sleep(1.0)
        one.serve(1000)
        await one.kill()
        await until(lambda: other.rollout.total.requests >= 40, 5)
        fresh = Member(server.url)
        await fresh.start()
        assert fresh.rollout.snapshot() == other.rollout.snapshot()
        await fresh.shared.close()
        one.shared.waiting, one.shared.tasks = [], []

    run(server, scenario)


def test_orders_are_carried_out_by_all_or_refused(server: Redis) -> None:
    async def scenario(members: list[Member]) -> None:
        one, other = members
        open_ramp(one)
        await until(lambda: other.rollout.state == "ramping")
        await other.shared.order(RolloutOrder(time.time(), "rollback"))
        await until(lambda: one.rollout.state == "rolled_back")
        with pytest.raises(JoyError, match="cannot pause"):
            await one.shared.order(RolloutOrder(time.time(), "pause"))

    run(server, scenario)


def test_without_redis_nothing_moves_up_and_a_failing_standby_is_taken_back(
    server: Redis,
) -> None:
    async def scenario(members: list[Member]) -> None:
        one, other = members
        open_ramp(one)
        one.serve(20, role=PRIMARY)
        await until(lambda: other.rollout.state == "ramping" and other.rollout.primary.requests > 0)
        server.stop()
        await until(lambda: one.shared.away and other.shared.away)
        assert any("goes on alone" in line for line in one.said)
        one.serve(100_000)
        other.shared.put(RolloutTick(time.time() + 1e6))
        assert one.rollout.step == other.rollout.step == 0
        one.serve(9, "status_500")
        assert one.rollout.state == "rolled_back"
        assert other.rollout.state == "ramping"
        with pytest.raises(JoyError, match="did not reach"):
            await other.shared.order(RolloutOrder(time.time(), "promote"))
        server.start()
        await until(lambda: not (one.shared.away or other.shared.away))
        await until(lambda: other.rollout.state == one.rollout.state == "rolled_back")
        assert one.rollout.total.failures == 9, "nothing is counted twice"

    run(server, scenario)


def test_a_gateway_with_another_plan_is_refused(server: Redis) -> None:
    async def whole() -> None:
        one, other = Member(server.url), Member(server.url, plan="b")
        await one.start()
        try:
            with pytest.raises(JoyError, match="of other gateways"):
                await other.start()
        finally:
            await one.shared.close()
            await other.shared.client.aclose()

    asyncio.run(whole())


def test_two_real_gateways_decide_together(server: Redis, tmp_path: Path) -> None:
    async def whole() -> None:
        gpu, npu = Fake(tokens=5), Fake(tokens=5)
        await gpu.start()
        await npu.start()
        raw = {
            "listen": "127.0.0.1:0",
            "upstreams": {"gpu": {"url": gpu.url, "role": "primary"},
                          "npu": {"url": npu.url, "role": "standby"}},
            "rollout": {"min_step_pairs": 0, "min_step_seconds": 3600},
            "monitor": {"devices": False, "backends": False},
            "state": server.url + "#pair",
        }  # fmt: skip
        made = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            path = tmp_path / name / "gateway.yaml"
            made.append(Gateway(settings.parse(raw, path), unverified=True))
            await made[-1].start()
        one, other = made
        try:
            await until(lambda: one.rollout.state == other.rollout.state == "ramping")
            await other.order(RolloutOrder(time.time(), "rollback"))
            await until(lambda: one.rollout.state == "rolled_back")
            assert one.router.weights() == other.router.weights() == {"gpu": 100, "npu": 0}
        finally:
            for gateway in made:
                await gateway.stop()
            await gpu.stop()
            await npu.stop()

    asyncio.run(asyncio.wait_for(whole(), 60))
