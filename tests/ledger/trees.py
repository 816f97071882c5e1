"""Small project trees for the tests of the ledger, and processes that die at a chosen moment."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

from joymigrate.ledger import transaction

Tree = dict[str, tuple[bytes, int]]

# Every call that changes the disk: a process can die between any two of them.
CALLS = (
    *("open", "write", "fsync", "replace", "rename", "unlink", "mkdir", "rmdir", "close"),
    *("fchmod", "chmod", "chown", "ftruncate", "setxattr"),
)


def tree_of(root: Path) -> Tree:
    """Content and permission bits of every file below `root`, without the ledger."""
    found = {}
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in (".joymigrate", ".git")]
        for name in files:
            path = Path(folder, name)
            mode = stat.S_IMODE(path.stat().st_mode)
            found[path.relative_to(root).as_posix()] = (path.read_bytes(), mode)
    return found


def write_tree(root: Path, tree: dict[str, bytes]) -> None:
    for name, data in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def run_and_die(act: Callable[[], object], at_call: int) -> bool:
    """Run `act` in a process that is killed (SIGKILL) before its disk call number `at_call`.

    Returns False when `act` ended before it came so far. No watcher is started.
    """
    child = os.fork()
    if child == 0:
        try:
            die_before_call(at_call)
            act()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def die_before_call(at_call: int) -> None:
    """Arm this process: it kills itself before its disk call number `at_call`."""
    count = 0

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def wrapper(*args: object, **more: object) -> object:
            nonlocal count
            count += 1
            if count == at_call:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **more)

        return wrapper

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    transaction.hold_watcher = lambda root: contextlib.nullcontext()  # type: ignore[assignment]
