"""New versions go through the gateway's ramp; a bad one is taken back and not tried again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from joymigrate.run.serve.evidence.answers import ranks_otherwise
from joymigrate.run.serve.gateway import settings, version_ramp
from joymigrate.run.serve.gateway.server import Gateway
from joymigrate.run.serve.gateway.version_ramp import RampAction, RampView, VersionRamp
from joymigrate.run.serve.ranking import program
from joymigrate.run.serve.ranking.lanes import RankingEngine
from joymigrate.run.serve.ranking.meters import RankingMeters
from joymigrate.run.serve.ranking.service import RankingService
from joymigrate.run.serve.ranking.versions import Versions
from joymigrate.run.serve.web.server import Server
from tests.run.serve.ranking.test_versions import ROWS, publish
from tests.run.serve.ranking.test_versions import model as balance  # noqa: F401

KEY = "secret"


def test_one_step_after_the_other() -> None:
    ramp = VersionRamp()
    assert ramp.decide(RampView(1, 1, 1, "standby")) is None
    assert ramp.decide(RampView(1, 1, 3, "standby")) == RampAction("standby", 3)
    assert ramp.decide(RampView(1, 3, 3, "standby")) == RampAction("gateway", order="resume")
    assert ramp.decide(RampView(1, 3, 4, "ramping")) is None
    assert ramp.decide(RampView(1, 3, 4, "promoted")) == RampAction("primary", 3)
    assert ramp.decide(RampView(3, 3, 4, "promoted")) == RampAction("gateway", order="rollback")
    assert ramp.decide(RampView(3, 3, 4, "rolled_back")) == RampAction("standby", 4)
    assert ramp.decide(RampView(3, 4, 4, "rolled_back")) == RampAction("gateway", order="resume")
    assert ramp.decide(RampView(3, 4, 4, "rolled_back")) == RampAction(
        "standby", 3
    )  # evidence said no
    assert ramp.decide(RampView(3, 3, 4, "rolled_back")) is None
    assert ramp.decide(RampView(3, 3, 5, "rolled_back")) == RampAction("standby", 5)
    assert ramp.decide(RampView(3, 5, 5, "rolled_back")) == RampAction("gateway", order="resume")
    assert ramp.decide(RampView(3, 5, 5, "differs")) == RampAction("gateway", order="rollback")
    assert ramp.decide(RampView(3, 5, 5, "rolled_back")) == RampAction("standby", 3)


def test_what_was_refused_is_remembered(tmp_path: Path) -> None:
    path = tmp_path / "gateway.versions.json"
    version_ramp.remember(path, VersionRamp(4, {2, 3}))
    assert version_ramp.read_memory(path) == VersionRamp(4, {2, 3})


def test_a_ranking_is_another_when_few_of_the_first_places_are_shared() -> None:
    base = tuple(float(one) for one in range(40))
    assert not ranks_otherwise(base, tuple(one + 0.4 * (-1) ** int(one) for one in base))
    assert ranks_otherwise(base, base[::-1])
    assert ranks_otherwise(base, base[:-1])
    assert not ranks_otherwise((1.0,), (2.0,))


class Place:
    """Gateway and two servers that hold versions, in one event loop."""

    def __init__(self, path: Path, published: Path, folder: Path) -> None:
        self.path, self.published, self.folder = path, published, folder
        self.servers: list[Server] = []
        self.engines: list[RankingEngine] = []

    async def start(self) -> None:
        for _ in range(2):
            model = program.load(self.path)
            engine = RankingEngine(model)
            engine.start()
            # Each has pins of its own, as on two machines.
            following = Versions(engine, str(self.published), hold=True, poll_seconds=0.05)
            following.pin_file = self.folder / f"pin-{len(self.engines)}.json"
            following.pinned = None
            following.start()
            service = RankingService(
                engine, ("balance",), RankingMeters(engine), versions=following, admin_key=KEY
            )
            self.engines.append(engine)
            self.servers.append(Server(service, port=0))
            await self.servers[-1].start()
        plan = {"start": "manual", "steps": [50, 100], "min_step_seconds": 0.1, "min_step_pairs": 2,
                "min_step_requests": 5, "proof_from": 101, "max_slowdown": 0}  # fmt: skip
        sections = {
            "listen": "127.0.0.1:0", "admin_key": KEY, "rollout": plan,
            "upstreams": {name: {"url": server.url, "role": name}
                          for name, server in zip(("primary", "standby"), self.servers,
                                                  strict=True)},
            "health": {"interval_seconds": 0.1}, "monitor": {"devices": False},
        }  # fmt: skip
        config = settings.parse(sections, self.folder / "gateway.yaml")
        self.gateway = Gateway(config, unverified=True, talk=lambda line: None)
        await self.gateway.start()

    async def stop(self) -> None:
        await self.gateway.stop()
        for server in self.servers:
            await server.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"


@pytest.mark.slow
def test_good_versions_arrive_and_a_bad_one_goes_back(
    balance: program.RankingProgram,  # noqa: F811
    tmp_path: Path,
) -> None:
    published = tmp_path / "published"
    publish(published, 1)
    place = Place(balance.path, published, tmp_path)
    said: list[str] = []

    async def until(session: Any, wanted: Any, seconds: float = 60) -> set[str]:
        """Ask all the time; which versions answered until it holds."""
        seen: set[str] = set()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        number = 0
        while not wanted():
            assert loop.time() < end, (said, place.gateway.rollout.state)
            number += 1
            ids = np.arange(ROWS)
            body = {"inputs": {"ids": ids.tolist()}, "user": f"u{number}"}
            async with session.post(f"{place.url}/v1/rank", json=body) as reply:
                answer = await reply.json()
                seen.add(answer.get("model_version", str(reply.status)))
                if reply.status == 200:
                    assert answer["outputs"]["score"] == [0.0] * ROWS
            await asyncio.sleep(0.002)
        return seen

    async def whole() -> None:
        await place.start()
        stop = asyncio.Event()
        places = version_ramp.RampServers(place.url, *(one.url for one in place.servers), key=KEY)
        driver = asyncio.create_task(
            version_ramp.follow(places, tmp_path / "memory.json", 0.05, said.append, stop)
        )
        try:
            async with aiohttp.ClientSession() as session:
                versions = place.engines
                await until(session, lambda: place.gateway.router.standby.up)
                publish(published, 2)
                seen = await until(session, lambda: versions[0].version == "2")
                assert seen == {"1", "2"}
                await until(session, lambda: place.gateway.rollout.state == "rolled_back")
                # Version 3 passes the trial at its arrival, and fails on what clients ask.
                publish(published, 3)
                original = versions[1].execute

                def failing(batch: Any) -> Any:
                    if versions[1].version == "3":
                        raise RuntimeError("this version fails")
                    return original(batch)

                versions[1].execute = failing  # type: ignore[method-assign]
                await until(session, lambda: versions[1].version == "3")
                await until(session, lambda: versions[1].version == "2")
                assert versions[0].version == "2"
                publish(published, 4)
                await until(session, lambda: any("version 4 is promoted" in one for one in said))
        finally:
            stop.set()
            await driver
            await place.stop()

    asyncio.run(whole())
    assert place.engines[0].version == "4"
    assert version_ramp.read_memory(tmp_path / "memory.json").refused == {3}
