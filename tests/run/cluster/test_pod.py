"""One pod's process: its output, its end, and that nothing of it stays on the cards."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from joymigrate.run.cluster.on_ray.pod import LINE, Pod

LIMIT_S = 30.0
# A program with a child that ignores being asked to end; both write their numbers.
FAMILY = """
import os, signal, sys, time
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(sys.argv[1] + "/child", "w").write(str(os.getpid()))
    time.sleep(600)
while not os.path.exists(sys.argv[1] + "/child"): time.sleep(0.01)
open(sys.argv[1] + "/ready", "w").close()
print("up", flush=True)
time.sleep(float(sys.argv[2]))
"""


def run(*command: str) -> tuple[int, list[str]]:
    async def whole() -> tuple[int, list[str]]:
        pod = Pod()
        return await pod.run(command, {"MINE": "1"}), await pod.tail(2000)

    return asyncio.run(asyncio.wait_for(whole(), LIMIT_S))


def family(folder: Path, seconds: float) -> Sequence[str]:
    return [sys.executable, "-c", FAMILY, str(folder), str(seconds)]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(folder: Path) -> bool:
    """Whether the program's child ends within the limit."""
    child = int((folder / "child").read_text())
    began = time.monotonic()
    while alive(child) and time.monotonic() - began < LIMIT_S:
        time.sleep(0.02)
    return not alive(child)


def test_output_exit_code_and_environment() -> None:
    code = "import os,sys; print(os.environ['MINE']); print(); sys.stderr.write('bad'); sys.exit(3)"
    assert run(sys.executable, "-u", "-c", code) == (3, ["1", "", "bad"])


def test_a_progress_bar_that_never_ends_a_line_does_not_end_the_job() -> None:
    code = f"print('\\r'.join(str(i) for i in range(9)) * 1 + '\\r' + 'x' * {3 * LINE}, end='')"
    ended, lines = run(sys.executable, "-c", code)
    assert ended == 0
    assert lines[:9] == [str(i) for i in range(9)]
    assert lines[9:] == ["x" * 3 * LINE]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_what_a_program_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    assert run(*family(tmp_path, 0)) == (0, ["up"])
    assert gone(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_stopping_ends_also_a_child_that_does_not_listen(tmp_path: Path) -> None:
    async def stopped() -> int:
        pod = Pod()
        running = asyncio.create_task(pod.run(family(tmp_path, 600), {}))
        while not (tmp_path / "ready").exists():
            await asyncio.sleep(0.02)
        await pod.stop()
        await pod.stop()  # twice is once
        return await running

    assert asyncio.run(asyncio.wait_for(stopped(), LIMIT_S)) == -signal.SIGTERM
    assert gone(tmp_path)


def test_stopping_a_pod_that_runs_nothing_does_nothing() -> None:
    asyncio.run(Pod().stop())


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_pod_that_is_killed_takes_its_program_and_that_ones_children_along(
    tmp_path: Path,
) -> None:
    code = (
        "import asyncio, sys; from joymigrate.run.cluster.on_ray.pod import Pod;"
        "asyncio.run(Pod().run(sys.argv[1:], {}))"
    )
    pod = subprocess.Popen([sys.executable, "-c", code, *family(tmp_path, 600)])
    began = time.monotonic()
    while not (tmp_path / "ready").exists() and time.monotonic() - began < LIMIT_S:
        time.sleep(0.02)
    os.kill(pod.pid, signal.SIGKILL)
    pod.wait()
    assert gone(tmp_path)


def test_a_command_beside_the_job_waits_for_the_jobs_environment() -> None:
    async def whole() -> tuple[tuple[int, bytes], tuple[int, bytes]]:
        pod = Pod()
        early = asyncio.create_task(pod.execute(["sh", "-c", "echo $MINE"], LIMIT_S))
        never = await Pod().execute(["true"], 0.05)
        await asyncio.sleep(0.1)
        await pod.start(["sleep", "600"], {"MINE": "1"})
        found = await early
        await pod.stop(0.1)
        return found, never

    found, never = asyncio.run(asyncio.wait_for(whole(), LIMIT_S))
    assert found == (0, b"1\n")
    assert never == (124, b"the job's own command has not started yet\n")
