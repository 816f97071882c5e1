"""What git says about a project: uncommitted changes that a rewrite would mix with its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from joymigrate.errors import JoyError


def dirty(root: Path) -> list[str]:
    """Tracked files with uncommitted changes under `root`, POSIX and relative to it.

    Untracked and ignored files don't count. Empty outside a repository. A repository that git
    can't read (a broken index, a foreign owner, no git at all) raises `JoyError` in git's words.
    """
    top = find_repository(root)
    if top is None:
        return []
    git = shutil.which("git")
    if git is None:
        raise unreadable(top, "git is not on PATH")
    command = [git, "-c", "core.fsmonitor=false", "-C", str(root)]  # run nothing of theirs
    if ask(top, [*command, "rev-parse", "--is-inside-work-tree"]).strip() == b"false":
        return []
    prefix = ask(top, [*command, "rev-parse", "--show-prefix"])
    status = [*command, "status", "--porcelain=v1", "-z", "--untracked-files=no", "--", "."]
    start = prefix.decode("utf-8", "surrogateescape").rstrip("\n")
    fields = iter(ask(top, status).split(b"\0"))
    found = []
    for field in fields:
        if not field:
            continue
        if field[:1] in b"RC":
            next(fields, None)  # the old name of a renamed file
        path = field[3:].decode("utf-8", "surrogateescape")
        found.append(path.removeprefix(start))
    return [path for path in found if not path.startswith(".joymigrate/")]


def find_repository(root: Path) -> Path | None:
    """The nearest folder at or above `root` with a `.git` that holds something."""
    for folder in (root, *root.parents):
        mark = folder / ".git"
        if mark.is_file() or (mark.is_dir() and any(mark.iterdir())):
            return folder
    return None


def ask(top: Path, command: list[str]) -> bytes:
    """What git prints; raises `JoyError` with git's own words when it refuses."""
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").split("\n\n")[0].strip()
        raise unreadable(top, words or f"git ended with exit code {done.returncode}")
    return done.stdout


def unreadable(top: Path, words: str) -> JoyError:
    """The refusal for a repository whose state is not known."""
    return JoyError(
        f"cannot tell whether there are uncommitted changes: {words}",
        where=str(top),
        help="mend what git names, or use --allow-dirty",
    )


def is_tracked(root: Path, folder: str) -> bool:
    """Whether git tracks a file below `folder`, which is POSIX and relative to `root`."""
    return bool(list_files(root, "--", folder))


def tracked_though_ignored(root: Path) -> frozenset[str]:
    """Files that git tracks below `root` (a repository's top) in spite of `.gitignore`, absolute.

    The folders that they lie in are there as well.
    """
    found: set[str] = set()
    for name in list_files(root, "--cached", "--ignored", "--exclude-standard").split(b"\0"):
        path = name.decode("utf-8", "surrogateescape")
        while path and f"{root}/{path}" not in found:
            found.add(f"{root}/{path}")
            path = path.rpartition("/")[0]
    return frozenset(found)


def list_files(root: Path, *words: str) -> bytes:
    """`git ls-files` below `root`, for reading alone; empty where git can't tell."""
    git = shutil.which("git")
    if git is None:
        return b""
    # safe.directory: a container's user often is not the owner.
    command = [git, "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", str(root)]
    done = subprocess.run([*command, "ls-files", "-z", *words], capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else b""
