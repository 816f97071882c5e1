"""Sparse and dense apart, and the user's side kept: the same scores as one process."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joymigrate.errors import JoyError
from joymigrate.run.serve.ranking import cut, program, rows
from joymigrate.run.serve.ranking.inputs import draw
from joymigrate.run.serve.ranking.lanes import RankingEngine
from joymigrate.run.serve.ranking.merge import merge
from joymigrate.run.serve.ranking.remote import Shards
from joymigrate.run.serve.ranking.request import RankingRequest, check
from joymigrate.run.serve.ranking.rows import HotRows, open_tables
from joymigrate.run.serve.ranking.shard import ReplacedRows, Shard, ShardService
from joymigrate.run.serve.ranking.shard_versions import ShardVersions
from joymigrate.run.serve.ranking.versions import Versions
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.server import Server
from joymigrate.run.train.formats import versions as published
from tests.run.serve.ranking.test_versions import model as balance  # noqa: F401
from tests.run.serve.ranking.test_versions import publish
from tests.run.train.tables.test_stores import server as redis_server  # noqa: F401


class Serving:
    """Shards on free ports, each stopped alone."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.servers: list[Server] = []

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def start(self, shard: Shard, port: int = 0) -> Server:
        server = Server(ShardService(shard), port=port)
        self.call(server.start())
        self.servers.append(server)
        return server

    def stop(self, server: Server) -> None:
        self.call(server.stop())
        self.servers.remove(server)

    def end(self) -> None:
        for server in list(self.servers):
            self.stop(server)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)


@pytest.fixture
def serving() -> Iterator[Serving]:
    made = Serving()
    yield made
    made.end()


@pytest.fixture
def dense(din_path: Path) -> Iterator[Callable[..., program.RankingProgram]]:
    opened: list[Shards] = []

    def make(
        addresses: list[list[str]], lost: str = "error", **options: Any
    ) -> program.RankingProgram:
        found = program.load(din_path)
        shards = Shards(addresses, **options)
        opened.append(shards)
        shards.start(10)
        program.take_tables_out(found, shards, lost)
        return found

    yield make
    for one in opened:
        one.stop()


def scores(engine: RankingEngine, *requests: RankingRequest) -> np.ndarray[Any, Any]:
    return engine.execute(merge(engine.program.signature, requests))[0][0]


def ranked(engine: RankingEngine, request: RankingRequest) -> Any:
    async def ask() -> Any:
        return await engine.rank(request)

    return asyncio.run(ask())


@pytest.mark.parametrize("cache", [0, 300])
def test_two_shards_and_the_dense_part_score_exactly_as_one_process(
    din: program.RankingProgram, din_path: Path, serving: Serving, dense: Any, cache: int
) -> None:
    urls = [[serving.start(Shard(open_tables(din_path), place, 2)).url] for place in (0, 1)]
    apart = dense(urls, cache=cache, seconds=5.0)
    assert set(apart.state).isdisjoint({"items.weight", "users.weight", "categories.weight"})
    random = np.random.default_rng(0)
    for seed in range(30):
        many = [draw(din.signature, int(random.integers(1, 30)), int(random.integers(0, 40)),
                     int(random.integers(0, 10))) for _ in range(1 + seed % 3)]  # fmt: skip
        assert np.array_equal(
            scores(RankingEngine(apart), *many), scores(RankingEngine(din), *many)
        )
    assert (apart.split.shards.cache_count("hits") > 0) == bool(cache)


def test_a_lost_shard_is_an_error_or_default_rows_and_its_return_is_seen(
    din_path: Path, serving: Serving, dense: Any
) -> None:
    servers = [serving.start(Shard(open_tables(din_path), place, 2)) for place in (0, 1)]
    urls = [[server.url] for server in servers]
    # A closed port is known at once: the limit is what a busy machine may take for whole answers.
    engines = [RankingEngine(dense(urls, lost, seconds=30.0)) for lost in ("error", "default")]
    request = draw(engines[0].program.signature, 8, 20)
    for engine in engines:
        engine.start()
        whole = ranked(engine, request)
        assert whole.degraded == ()
    port = int(servers[1].url.rpartition(":")[2])
    serving.stop(servers[1])
    began = time.monotonic()
    with pytest.raises(HttpRefusal, match="shard 1 of 2 is lost"):
        ranked(engines[0], request)
    less = ranked(engines[1], request)
    assert time.monotonic() - began < 30  # nobody waited for the limit
    assert less.degraded == ("shard-1-of-2",)
    assert engines[1].counts.degraded == 1
    assert not np.array_equal(less.outputs[0], whole.outputs[0])
    serving.start(Shard(open_tables(din_path), 1, 2), port)
    for engine in engines:
        end = time.monotonic() + 20
        while engine.program.split.shards.lost_shards() and time.monotonic() < end:
            time.sleep(0.02)
        assert np.array_equal(ranked(engine, request).outputs[0], whole.outputs[0])
        engine.close()


def test_another_address_of_a_shard_answers_for_one_that_hangs(
    din: program.RankingProgram, din_path: Path, serving: Serving, dense: Any
) -> None:
    first, second = (serving.start(Shard(open_tables(din_path))) for _ in range(2))
    apart = dense([[first.url, second.url]], seconds=1.0)
    request = draw(din.signature, 8, 20)
    engine = RankingEngine(apart)
    scores(engine, request)
    with socket.create_server(("127.0.0.1", 0)) as hung:  # takes connections, says nothing
        apart.split.shards.shards[0][0].url = f"http://127.0.0.1:{hung.getsockname()[1]}"
        began = time.monotonic()
        apart.split.shards.seconds = 0.3
        with pytest.raises(
            HttpRefusal
        ):  # the time of this batch is gone; the next one asks the other
            scores(engine, request)
        assert time.monotonic() - began < 3
        apart.split.shards.seconds = 5.0
        assert np.array_equal(scores(engine, request), scores(RankingEngine(din), request))
    serving.stop(first)
    assert np.array_equal(scores(engine, request), scores(RankingEngine(din), request))


def test_a_server_that_is_another_shard_is_refused(
    din_path: Path, serving: Serving, dense: Any
) -> None:
    url = serving.start(Shard(open_tables(din_path), 0, 2)).url
    shards = Shards([[url], [url]])
    with pytest.raises(JoyError, match="this is shard 0 of 2, 1 of 2 is asked"):
        shards.start(0.3)


def test_rows_of_the_version_before_are_kept_and_older_ones_refused(din_path: Path) -> None:
    shard = Shard(open_tables(din_path), 1, 2)
    ids = np.arange(1, 21, 2)
    width = shard.tables["items.weight"].shape[1]
    told = {0: shard.read("items.weight", ids, 0)}
    for number in range(1, 13):
        mine = np.arange(number, 20)
        fresh = np.full((len(mine), width), number, np.uint8)
        shard.put(number, [ReplacedRows("items.weight", mine, fresh)])
        told[number] = shard.read("items.weight", ids, number)
    for number in range(4, 13):
        assert np.array_equal(shard.read("items.weight", ids, number), told[number])
    for number in (3, 13):
        with pytest.raises(HttpRefusal, match="is not held, only 4 to 12"):
            shard.read("items.weight", ids, number)
    assert shard.back() == 11
    assert np.array_equal(shard.read("items.weight", ids, 11), told[11])


def test_versions_reach_shards_and_dense_part_as_one(
    balance: program.RankingProgram,  # noqa: F811
    tmp_path: Path,
    serving: Serving,
) -> None:
    place = tmp_path / "published"
    publish(place, 1)
    held = [Shard(open_tables(balance.path), index, 2) for index in (0, 1)]
    following = [ShardVersions(shard, str(place), poll_seconds=0.01) for shard in held]
    for one in following:
        one.start()
    shards = Shards([[serving.start(shard).url] for shard in held], seconds=5.0)
    shards.start(10)
    program.take_tables_out(balance, shards, "error")
    engine = RankingEngine(balance)
    versions = Versions(engine, str(place), poll_seconds=0.01)
    versions.start()
    engine.start()
    seen: set[str] = set()
    number = 1
    end = time.monotonic() + 60
    request = check(balance.signature, {"ids": np.arange(8)})
    while number < 12 and time.monotonic() < end:
        found = ranked(engine, request)
        assert (found.outputs[0] == 0).all()  # table and dense weight are of one version
        if found.version == str(number):
            number += 1
            publish(place, number)
        seen.add(found.version)
    assert len(seen) >= 11
    assert versions.back() == int(engine.version)
    assert (ranked(engine, request).outputs[0] == 0).all()
    versions.stop()
    for one in following:
        one.stop()
    engine.close()
    shards.stop()


def test_shards_go_no_further_than_a_dense_part_that_stays_behind(
    balance: program.RankingProgram,  # noqa: F811
    tmp_path: Path,
    serving: Serving,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("joymigrate.run.serve.ranking.shard.NEEDED_SECONDS", 3600.0)
    place = tmp_path / "published"
    for number in range(1, 4):
        publish(place, number)
    held = [Shard(open_tables(balance.path), index, 2) for index in (0, 1)]
    following = [ShardVersions(shard, str(place), poll_seconds=3600.0) for shard in held]
    for one in following:
        one.start()
    servers = [serving.start(shard) for shard in held]
    shards = Shards([[server.url] for server in servers], seconds=5.0)
    program.take_tables_out(balance, shards, "error")
    engine = RankingEngine(balance)
    versions = Versions(engine, str(place), poll_seconds=3600.0)
    shards.start(10)
    versions.start()
    engine.start()
    request = check(balance.signature, {"ids": np.arange(8)})
    try:
        assert versions.back() == 2
        shards.look(everywhere=True)  # as it does every two seconds
        for number in range(4, 20):
            publish(place, number)
        for one in following:
            one.follow()
        assert [(shard.oldest, shard.number) for shard in held] == [(2, 10), (2, 10)]
        assert (ranked(engine, request).outputs[0] == 0).all()
        assert engine.version == "2"
        with pytest.raises(JoyError, match="no rows of version 1, only of 2 to 10"):
            versions.go(1)
        with pytest.raises(JoyError, match="no rows of version 19, only of 2 to 10"):
            versions.go(19)
        assert versions.newest == 10  # whoever ramps up versions is told one that can be had
        # A shard that starts again has what was before the newest, but not 2 any more.
        again = Shard(open_tables(balance.path), 1, 2)
        ShardVersions(again, str(place), poll_seconds=3600.0).open()
        assert (again.oldest, again.number) == (11, 19)
        versions.resume()
        steps = []
        while engine.version != "19":
            versions.follow()
            steps.append(engine.version)
            shards.look(everywhere=True)
            for one in following:
                one.follow()
            assert (ranked(engine, request).outputs[0] == 0).all()
        assert steps == ["10", "18", "19"]
    finally:
        versions.stop()
        engine.close()
        shards.stop()


def test_a_snapshot_pushes_out_no_rows_that_a_dense_part_asks_for(
    balance: program.RankingProgram,  # noqa: F811
    tmp_path: Path,
    serving: Serving,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("joymigrate.run.serve.ranking.shard.NEEDED_SECONDS", 3600.0)
    place = tmp_path / "published"
    for number in range(1, 4):
        publish(place, number)
    shard = Shard(open_tables(balance.path), 0, 1)
    following = ShardVersions(shard, str(place), poll_seconds=3600.0)
    following.start()
    shards = Shards([[serving.start(shard).url]], seconds=5.0)
    program.take_tables_out(balance, shards, "error")
    engine = RankingEngine(balance)
    versions = Versions(engine, str(place), poll_seconds=3600.0)
    shards.start(10)
    versions.start()
    engine.start()
    request = check(balance.signature, {"ids": np.arange(8)})

    def snapshot(number: int) -> None:
        publish(place, number)
        published.compact(published.open_versions(str(place)), number)
        shards.look(everywhere=True)
        following.follow()

    try:
        assert versions.back() == 2
        snapshot(4)
        publish(place, 5)
        snapshot(6)  # the shard has not seen 5 yet
        assert (shard.oldest, shard.number) == (0, 6)
        for number in range(7, 15):
            publish(place, number)
        snapshot(15)
        assert (shard.oldest, shard.number) == (2, 10)
        published.prune(published.open_versions(str(place)), 1)
        following.follow()
        assert (shard.oldest, shard.number) == (2, 10)
        assert (ranked(engine, request).outputs[0] == 0).all()
        assert engine.version == "2"
        # What lies between is published no more: the shard goes on once nobody stays behind.
        versions.resume()
        with pytest.raises(JoyError, match="version 10"):
            versions.follow()
        monkeypatch.setattr("joymigrate.run.serve.ranking.shard.NEEDED_SECONDS", 0.0)
        shards.look(everywhere=True)
        following.follow()
        shards.look(everywhere=True)
        versions.follow()
        assert engine.version == "15"
        assert (ranked(engine, request).outputs[0] == 0).all()
    finally:
        versions.stop()
        engine.close()
        shards.stop()


def test_hot_rows_stay_and_cold_ones_go() -> None:
    cache = HotRows(4, 1)
    out = np.zeros((2, 1), np.uint8)
    hot = np.array([1, 2])
    cache.put(hot, np.array([[1], [2]], np.uint8))
    for _ in range(3):
        assert len(cache.get(hot, out)) == 0
    for cold in range(10, 20, 2):
        cache.put(np.array([cold, cold + 1]), np.zeros((2, 1), np.uint8))
    assert len(cache.get(hot, out)) == 0
    assert out.ravel().tolist() == [1, 2]
    assert len(cache.slots) == 4
    cache.clear()
    assert cache.get(hot, out).tolist() == [0, 1]


def test_mapped_tables_are_the_weights_of_the_program(
    din: program.RankingProgram, din_path: Path, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    state = {name: tensor.detach().contiguous() for name, tensor in din.state.items()}
    save_file(state, tmp_path / "model.safetensors")
    for place in (din_path, tmp_path):
        found = open_tables(place)
        for name, tensor in state.items():
            if tensor.ndim > 1:
                assert found[name].tobytes() == tensor.numpy().tobytes()
    (tmp_path / "model.safetensors").write_bytes(b"not a model")
    with pytest.raises(JoyError, match="no safetensors file"):
        open_tables(tmp_path)


def test_a_program_without_tables_cannot_be_cut(balance: program.RankingProgram) -> None:  # noqa: F811
    model: Any = balance.eager
    with pytest.raises(JoyError, match="nothing of this program depends on the user alone"):
        cut.cut_users(model, balance.signature)


def test_kept_user_sides_score_as_computed_ones_and_end_with_their_version(
    din_path: Path,
) -> None:
    model = program.load(din_path)
    engine = RankingEngine(model)
    plain = RankingEngine(program.load(din_path))
    program.keep_users(model, 2**20)
    random = np.random.default_rng(1)
    users = [draw(model.signature, 1, int(random.integers(0, 30)), seed) for seed in range(6)]
    for turn in range(30):
        if turn == 15:
            engine.version = "2"
            for one in (model, plain.program):
                one.state["items.weight"].mul_(-1)
        requests = []
        for _ in range(1 + turn % 4):
            who = int(random.integers(0, 6))
            own = draw(model.signature, int(random.integers(1, 9)), 3, 100 + turn)
            arrays = {**own.arrays, **{name: users[who].arrays[name]
                                       for name in ("user", "history", "lengths")}}  # fmt: skip
            requests.append(check(model.signature, arrays, key=str(who)))
        found, expected = scores(engine, *requests), scores(plain, *requests)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    kept = model.users
    assert kept is not None
    assert kept.hits > 20
    assert kept.misses >= 12  # each of the six once for each version
    other = draw(model.signature, 4, 9, 77)
    other.key = "0"  # a stale key gives nobody another user's scores
    np.testing.assert_allclose(scores(engine, other), scores(plain, other), atol=1e-6)


def test_kept_user_sides_stay_within_their_room(din_path: Path) -> None:
    model = program.load(din_path)
    program.keep_users(model, 20_000)
    engine = RankingEngine(model)
    for seed in range(20):
        request = draw(model.signature, 2, 20, seed)
        request.key = str(seed)
        scores(engine, request)
    assert model.users is not None
    assert 0 < model.users.bytes <= 20_000
    assert model.users.bytes == sum(one.bytes for one in model.users.kept.values())


def test_rows_come_from_redis_with_the_models_own_behind(
    din_path: Path,
    redis_server: Any,  # noqa: F811
) -> None:
    import redis

    redis_url = redis_server.url
    tables = open_tables(din_path)
    client = redis.Redis.from_url(redis_url)
    client.set(b"items:7", bytes(128) + b"state")
    source = rows.RedisRows(redis_url, tables, 10, 1.0)
    ids = np.array([7, 8])
    found = source.read("items.weight", ids, 0.0)
    assert not found[0].any()
    assert np.array_equal(found[1], tables["items.weight"][8])
    client.set(b"items:7", b"\x01" * 128)
    assert not source.read("items.weight", ids, 0.5)[0].any()  # kept for a second
    assert (source.read("items.weight", ids, 2.0)[0] == 1).all()
