"""The state of files in a user's tree, compared by content and never by time."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.ledger.step import sha256


@dataclass(frozen=True, slots=True)
class Change:
    """New content for one file.

    `path` is POSIX and relative to the project root, and no part of it is a symbolic link.
    `before` None creates the file, `after` None removes it. `mode`: permission bits of the result;
    None keeps those of the file, or takes the usual ones for a new file. `prunes` are folders to
    remove with the file where nothing else is in them, outermost first.
    """

    path: str
    before: bytes | None
    after: bytes | None
    mode: int | None = None
    prunes: tuple[str, ...] = ()


def read(path: Path) -> bytes | None:
    """The bytes of a regular file, None where nothing is; anything else raises `JoyError`."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise JoyError(
            f"cannot look at it: {error.strerror}", where=str(path), help="make it readable"
        ) from None
    if not stat.S_ISREG(status.st_mode):
        raise JoyError(
            "not a regular file", where=str(path), help="put the file back, then run this again"
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise JoyError(
            f"cannot read: {error.strerror}", where=str(path), help="make it readable"
        ) from None


def hash_of(path: Path) -> str | None:
    """SHA-256 of what is at `path`; None where nothing is, `"other"` for a link or a folder."""
    try:
        data = read(path)
    except JoyError:
        return "other"
    return None if data is None else sha256(data)


def mode_of(path: Path) -> int | None:
    """Permission bits of a file, None where nothing is."""
    try:
        return stat.S_IMODE(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None


def usual_mode() -> int:
    """Permission bits of a new file of this user."""
    mask = os.umask(0o022)
    os.umask(mask)
    return 0o666 & ~mask
