"""Files and folders that a program makes where it runs: another run of it has to begin as the first
one did. No torch.

A program that finds its own checkpoint resumes, and one that finds its output folder may refuse to
start. What is new is set aside while it runs again. A file that was there before and that the
program changed stays as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

from joymigrate.files import replace_file

MOST = 200_000  # files that are looked at; a folder with more is left alone
OURS = ".joymigrate"  # the ledger, and what is set aside
SKIPPED = (".git", "__pycache__")


def list_files(folder: Path, apart: Path | None = None) -> set[str] | None:
    """Files and folders below a folder, by path, without those of the bundle `apart` and ours; None
    for too many."""
    found: set[str] = set()
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if Path(place, name) != apart and name not in SKIPPED and not name.startswith(OURS)
        ]
        found.update(os.path.join(place, name) for name in (*folders, *names))
        if len(found) > MOST:
            return None
    return found


@contextlib.contextmanager
def set_aside(folder: Path, before: set[str] | None, apart: Path) -> Iterator[None]:
    """Without what is new since `before`; what is made in here goes again."""
    now = list_files(folder, apart)
    if before is None or now is None:
        yield
        return
    old = before | {str(parent) for parent in apart.parents}
    with keep_apart(outermost(now - old), folder):
        try:
            yield
        finally:
            for path in outermost((list_files(folder, apart) or old) - old):
                remove(path)


@contextlib.contextmanager
def begin_as_first(folder: Path, note: Path) -> Iterator[None]:
    """Without what earlier runs made, which `note` names; what is made in here takes its place, and
    is named there in turn."""
    now = list_files(folder)
    if now is None:
        yield
        return
    before = now - read_note(note)
    try:
        with keep_apart(outermost(now - before), folder):
            yield
    finally:
        made = sorted((list_files(folder) or before) - before)
        replace_file(note, json.dumps(made).encode("utf-8"))


def read_note(note: Path) -> set[str]:
    """The paths that a note names; none where it can't be read."""
    try:
        return set(json.loads(note.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return set()


@contextlib.contextmanager
def keep_apart(paths: Collection[str], folder: Path) -> Iterator[None]:
    """With some paths in a room of their own in the folder. Each comes back, unless another is in
    its place then."""
    if not paths:
        yield
        return
    with tempfile.TemporaryDirectory(prefix=f"{OURS}-aside-", dir=folder) as room:
        held = {path: os.path.join(room, str(number)) for number, path in enumerate(sorted(paths))}
        for path, kept in held.items():
            os.rename(path, kept)
        try:
            yield
        finally:
            for path, kept in held.items():
                if not os.path.lexists(path):
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    shutil.move(kept, path)


def outermost(paths: Collection[str]) -> list[str]:
    """Paths that lie in no other of them."""
    return sorted(path for path in paths if os.path.dirname(path) not in paths)


def remove(path: str) -> None:
    """A file or a folder goes."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
