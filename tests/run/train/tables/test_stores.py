"""Stores of rows: what was written comes back; a server that goes away; a full disk."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from joymigrate.errors import JoyError
from joymigrate.run.train.tables import TableOptions
from joymigrate.run.train.tables.stores import RowFormat, open_store
from tests.run.train.tables.test_embedding import dynamic, train


class Server:
    """A real redis-server in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder = folder
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--dir", str(self.folder),
             "--appendonly", "yes", "--save", ""],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        until = time.monotonic() + 10
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError("redis-server did not start")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    started = Server(tmp_path)
    yield started
    started.stop()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("state", [0, 3])
@pytest.mark.parametrize("kind", ["memory", "file", "lmdb", "redis"])
def test_rows_come_back(
    kind: str, state: int, dtype: torch.dtype, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    where = {
        "memory": lambda: "memory",
        "redis": lambda: request.getfixturevalue("server").url,
    }.get(kind, lambda: f"{kind}:{tmp_path}")()
    form = RowFormat(5, state, dtype)
    store = open_store(where, "a/b", form)
    store.reserve(10)
    ids, slots = np.array([-7, 2**40, 3]), np.array([4, 0, 9])
    weights, held = torch.randn(3, 5).to(dtype), torch.randn(3, state)
    store.write(ids, slots, weights, held)
    store.reserve(100)
    store.flush()
    order = [2, 0, 1]
    found = store.read(ids[order], slots[order])
    assert torch.equal(found[0], weights[order])
    assert torch.equal(found[1], held[order])
    store.close()


def test_training_goes_on_when_redis_is_back(server: Server) -> None:
    options = TableOptions(dynamic=True, cache_rows=4, store=server.url)
    kept, whole = dynamic(options, "adagrad"), dynamic(TableOptions(dynamic=True), "adagrad")
    for step in range(12):
        back = None
        if step == 6:
            server.stop()
            back = threading.Timer(1.0, server.start)
            back.start()
        ids = [step, step % 3, 50 - step % 5]
        assert torch.equal(train(kept, *ids), train(whole, *ids))
        if back is not None:
            back.join()
    for one, other in zip(kept.table("t").all_rows(), whole.table("t").all_rows(), strict=True):
        assert torch.equal(one[1], other[1])


def test_a_redis_that_stays_away_is_one_clear_error(server: Server) -> None:
    options = TableOptions(dynamic=True, cache_rows=2, store=server.url, redis_patience_s=0.3)
    ebc = dynamic(options)
    train(ebc, 1, 2)
    server.stop()
    with pytest.raises(JoyError, match="rows can't be kept in Redis") as caught:
        train(ebc, 3, 4)
    assert "start the server" in str(caught.value.help)
    server.start()


def test_a_redis_that_lost_its_rows_is_an_error_and_no_new_row(server: Server) -> None:
    import redis

    ebc = dynamic(TableOptions(dynamic=True, cache_rows=2, store=server.url))
    train(ebc, 1, 2)
    train(ebc, 3, 4)
    redis.Redis.from_url(server.url).flushall()
    with pytest.raises(JoyError, match="the row of id 1 was written and is gone"):
        train(ebc, 1)


def test_a_full_disk_is_an_error_when_the_file_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is made: no file system here can be filled without a mount."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = open_store(f"file:{tmp_path}", "t", RowFormat(4))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(JoyError, match="rows can't be kept in a file: No space left"):
        store.reserve(10)


@pytest.mark.parametrize("where", ["disk", "file:", "redis", "ftp://x"])
def test_an_unknown_store_is_refused(where: str) -> None:
    with pytest.raises(JoyError, match=f"rows can't be kept in '{where}'"):
        open_store(where, "t", RowFormat(4))
