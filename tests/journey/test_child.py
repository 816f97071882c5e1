"""A command that a journey starts ends with it, and hears of Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

# A hook of `fork` is where Python would print a KeyboardInterrupt and go on.
INTERRUPTED = """\
import os, signal
from joymigrate.journey.child import start

os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGINT))
try:
    start(["sleep", "60"])
except KeyboardInterrupt:
    print("interrupted")
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("nothing left")
"""
KILLED = """\
import os, sys
from joymigrate.journey.child import start

print(start(["sleep", "60"]).pid, flush=True)
os.kill(os.getpid(), 9)
"""


def ran(program: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the command forks on Linux only")
def test_an_interrupt_while_a_command_is_started_is_not_lost() -> None:
    done = ran(INTERRUPTED)
    assert done.stdout.splitlines() == ["interrupted", "nothing left"], done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
def test_a_command_ends_with_the_process_that_started_it() -> None:
    pid = int(ran(KILLED).stdout)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/cmdline").exists() and time.monotonic() < deadline:
        if not Path(f"/proc/{pid}/cmdline").read_bytes():
            break  # ended; whoever adopted it has not asked for its exit code
        time.sleep(0.01)
    else:
        assert not Path(f"/proc/{pid}").exists()


def test_a_command_that_is_not_there_is_an_os_error() -> None:
    from joymigrate.journey.child import start

    with pytest.raises(FileNotFoundError):
        start(["/no/such/program"])
