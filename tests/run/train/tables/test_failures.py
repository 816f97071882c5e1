"""What one process met is heard by the others; what all were told in step is not told again."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from joymigrate.errors import JoyError  # noqa: E402
from joymigrate.run.train.tables import failures  # noqa: E402
from joymigrate.run.train.tables.failures import AgreedError, Failures  # noqa: E402

PROGRAMS = Path(__file__).parent / "programs"


def pair() -> tuple[Failures, Failures, list[str]]:
    store, ended = dist.HashStore(), []
    return Failures(store, 0, ended.append), Failures(store, 1, ended.append), ended


def test_another_process_gets_the_words_and_keeps_its_own_mistakes() -> None:
    first, second, _ = pair()
    assert second.of_others() is None
    first.tell(ValueError("a bad row"))
    first.tell(ValueError("something later"))
    said = second.explained(RuntimeError("Connection closed by peer"))
    assert isinstance(said, JoyError)
    assert "process 0 failed" in str(said)
    assert "ValueError: a bad row" in str(said)
    mine = JoyError("what this process met itself")
    assert second.explained(mine) is mine
    assert first.of_others() is None  # its own word is no other's


@pytest.mark.parametrize("error", [AgreedError("all were told"), StopIteration()])
def test_what_came_to_all_is_not_told(error: BaseException) -> None:
    first, second, _ = pair()
    assert first.explained(error) is error
    assert second.of_others() is None


@pytest.mark.parametrize("spins_s", [60.0, 0.2])
def test_only_a_process_that_stands_still_is_ended(
    spins_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "LOOK_S", 0.01)
    monkeypatch.setattr(failures, "PATIENCE_S", 0.2)
    monkeypatch.setattr(failures, "SPINS_S", spins_s)
    first, second, ended = pair()
    first.tell(ValueError("a bad row"))
    stands = threading.Event()

    def end(message: str) -> None:
        ended.append(message)
        second.alive = False
        stands.set()

    second.end = end
    watch = threading.Thread(target=second.look_on)
    watch.start()
    numbers = list(range(500_000))
    until = time.monotonic() + 1.0
    while time.monotonic() < until and not ended:
        sum(numbers)  # moves on, and is nearly always seen at this one call
    assert ended if spins_s < 1 else not ended
    assert stands.wait(20)
    watch.join()
    assert "process 0 failed" in ended[0]


def test_closing_ends_the_look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "LOOK_S", 600.0)
    first, _, ended = pair()
    first.thread.start()
    first.close()
    assert not first.thread.is_alive()
    assert not ended


def start(*program: str) -> list[subprocess.Popen[str]]:
    """Two processes of a group."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        subprocess.Popen(
            [sys.executable, *program],
            cwd=PROGRAMS, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                 "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
        )
        for rank in range(2)
    ]  # fmt: skip


@pytest.mark.slow
def test_threads_that_are_left_running_do_not_abort_the_process() -> None:
    for process in start("endless.py"):
        said = process.communicate(timeout=150)[1]
        assert process.returncode == 0, said


@pytest.mark.slow
@pytest.mark.parametrize("where", ["forward", "optimiser", "plain"])
def test_a_step_that_fails_in_one_process_ends_all(where: str) -> None:
    started = start("one_fails.py", where)
    first = started[0].communicate(timeout=150)[1]
    still_there = started[1].poll() is None
    started[1].kill()
    started[1].communicate()
    assert "process 1 failed, so this one can't go on: ValueError: a user's own mistake" in first
    assert still_there  # and was not waited for
