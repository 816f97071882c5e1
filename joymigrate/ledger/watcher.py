"""The process that ends an interrupted change when the one that began it is killed.

It reads a pipe whose other end only the writing process holds. A word says that all went well;
the end of the pipe without one says that the writer is dead, and the watcher recovers the tree.
It has a session of its own, so that what kills the writer's process group leaves it alone.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DONE = b"done"
# Isolated (-I) and without site (-S): the user's folder and environment must not reach it. What
# recovery needs is imported only after a death: the writer waits for this process at every change.
PROGRAM = """
import sys
if sys.stdin.buffer.read() != {done!r}:
    sys.path[:] = {path!r}
    from joymigrate.ledger.recovery import end_change
    end_change(sys.argv[1])
"""
PACKAGES = str(Path(__file__).parents[2])  # an editable install may not be on sys.path


@contextmanager
def hold_watcher(root: Path) -> Iterator[None]:
    """Hold a watcher over the body. Without one (no process left) the body runs all the same."""
    program = PROGRAM.format(done=DONE, path=[*filter(None, sys.path), PACKAGES])
    try:
        watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/" if sys.platform != "win32" else None,
            start_new_session=True,
        )
    except OSError:
        yield
        return
    assert watcher.stdin is not None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            watcher.stdin.write(DONE)
            watcher.stdin.close()
        watcher.wait()
