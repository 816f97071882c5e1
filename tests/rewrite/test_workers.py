"""The processes of a scan end with it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

LIMIT_S = 120  # a slow machine takes its time; nothing waits that long on any other


def wait_for(done: Callable[[], bool]) -> bool:
    """Whether something became true within the limit."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        if done():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_a_scan_whose_parent_dies_leaves_no_worker(tmp_path: Path) -> None:
    body = "".join(f"x{n} = torch.zeros({n}, device='cuda:{n}').cuda()\n" for n in range(3000))
    for number in range(30):
        (tmp_path / f"a{number}.py").write_text(f"import torch\n{body}")
    command = [sys.executable, "-m", "joymigrate", "scan", str(tmp_path), "-q", "-j", "2"]
    scan = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{scan.pid}/task/{scan.pid}/children")
    workers: list[str] = []

    def started() -> bool:
        workers[:] = children.read_text().split() if children.exists() else []
        return len(workers) >= 2 or scan.poll() is not None

    assert wait_for(started)
    assert scan.poll() is None
    scan.kill()
    scan.wait()
    assert wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
