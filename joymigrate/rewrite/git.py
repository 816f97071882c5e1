"""What git says about a project: uncommitted changes that a rewrite would mix with its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def dirty(root: Path) -> list[str]:
    """Tracked files with uncommitted changes under `root`, POSIX and relative to it.

    Untracked and ignored files don't count. Empty outside a work tree or without git.
    """
    git = shutil.which("git")
    if git is None:
        return []
    # safe.directory: a container's user often is not the owner; fsmonitor: run nothing of theirs.
    command = [git, "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", str(root)]
    prefix = answer([*command, "rev-parse", "--show-prefix"])
    if prefix is None:
        return []
    status = [*command, "status", "--porcelain=v1", "-z", "--untracked-files=no", "--", "."]
    start = prefix.decode("utf-8", "surrogateescape").rstrip("\n")
    fields = iter((answer(status) or b"").split(b"\0"))
    found = []
    for field in fields:
        if not field:
            continue
        if field[:1] in b"RC":
            next(fields, None)  # the old name of a renamed file
        path = field[3:].decode("utf-8", "surrogateescape")
        found.append(path.removeprefix(start))
    return [path for path in found if not path.startswith(".joymigrate/")]


def is_tracked(root: Path, folder: str) -> bool:
    """Whether git tracks a file below `folder`, which is POSIX and relative to `root`."""
    git = shutil.which("git")
    if git is None:
        return False
    command = [git, "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", str(root)]
    return bool(answer([*command, "ls-files", "-z", "--", folder]))


def tracked_though_ignored(root: Path) -> frozenset[str]:
    """Files that git tracks below `root` (a repository's top) in spite of `.gitignore`, absolute.

    The folders that they lie in are there as well.
    """
    git = shutil.which("git")
    if git is None:
        return frozenset()
    command = [git, "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", str(root)]
    asked = [*command, "ls-files", "-z", "--cached", "--ignored", "--exclude-standard"]
    found: set[str] = set()
    for name in (answer(asked) or b"").split(b"\0"):
        path = name.decode("utf-8", "surrogateescape")
        while path and f"{root}/{path}" not in found:
            found.add(f"{root}/{path}")
            path = path.rpartition("/")[0]
    return frozenset(found)


def answer(command: list[str]) -> bytes | None:
    """What git prints, or None when it refuses (no repository, a bare one)."""
    done = subprocess.run(command, capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None
