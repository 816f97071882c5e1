"""A small DIN-like model, exported once, and servers on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ranking_example as example
from joymigrate.run.serve.kserve import rpc
from joymigrate.run.serve.ranking import program
from joymigrate.run.serve.ranking.lanes import RankingEngine
from joymigrate.run.serve.ranking.meters import RankingMeters
from joymigrate.run.serve.ranking.service import RankingService
from joymigrate.run.serve.web.server import Server


@pytest.fixture(scope="session")
def din_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return example.export(tmp_path_factory.mktemp("din") / "din.pt2")


@pytest.fixture(scope="session")
def din(din_path: Path) -> program.RankingProgram:
    return program.load(din_path)


class Running:
    """A service on free ports, in a loop of its own thread."""

    def __init__(self, service: RankingService) -> None:
        self.service = service
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.server = Server(service, port=0)
        self.call(self.server.start())
        self.rpc, port = self.call(rpc.start(service, "127.0.0.1", 0))
        self.url, self.grpc = self.server.url, f"127.0.0.1:{port}"

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def stop(self) -> None:
        self.call(self.rpc.stop(None))
        self.call(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)


@pytest.fixture
def serve(din: program.RankingProgram) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def start(model: program.RankingProgram | None = None, **options: Any) -> Running:
        engine = RankingEngine(model or din, **options)
        engine.start()
        running.append(Running(RankingService(engine, ("din",), RankingMeters(engine))))
        return running[-1]

    yield start
    for one in running:
        one.stop()
