"""Files and folders that a program makes where it runs: another run of it has to begin as the first
one did. No torch.

A program that finds its own checkpoint resumes, and one that finds its output folder may refuse to
start. What is new is set aside while it runs again. A file that was there before the first run is
never moved, and stays as the program has changed it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from joymigrate.files import replace_file
from joymigrate.ledger.stash import is_folder, stash

MOST = 200_000  # files that are looked at; a folder with more is left alone
NOTE = "made.txt"  # in the folder of a run's bundle
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


def note_made(note: Path) -> None:
    """Note from here on each file and folder that this process's Python makes; what compiled code
    makes lies in such a folder as a rule."""
    handle = os.open(note, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    ours = os.fstat(handle)

    def hear(event: str, values: tuple[Any, ...]) -> None:
        if event == "os.rename":
            path = values[1]
        elif event == "os.mkdir" or (event == "open" and values[2] & os.O_CREAT):
            path = values[0]
        else:
            return
        if isinstance(path, str | bytes | os.PathLike):
            with contextlib.suppress(OSError, ValueError):
                name = os.path.abspath(os.fsdecode(path))
                if os.path.lexists(name) or "\0" in name:
                    return
                if os.path.samestat(os.fstat(handle), ours):  # a daemon closes all that it has
                    os.write(handle, os.fsencode(name) + b"\0")

    sys.addaudithook(hear)


def read_made(note: Path) -> set[str]:
    """What processes noted."""
    try:
        return {os.fsdecode(name) for name in note.read_bytes().split(b"\0") if name}
    except OSError:
        return set()


@contextlib.contextmanager
def begin_again(
    folder: Path,
    before: set[str] | None,
    first: set[str] | None,
    apart: Path,
    note: Path | None = None,
) -> Iterator[None]:
    """Without what is new since `before`, which comes back: what is made in the place of a file of
    the first run, that ended with `first`, goes again, and so does what `note` says that this run
    made, as a folder with the time in its name. Another file stays, and is put in the place of an
    older one: nothing says that it is not the user's. So does a file that this run only moved, and
    all it made under new names where it removed a file: that may be a copy of it."""
    now = list_files(folder, apart)
    if before is None or first is None or now is None:
        yield
        return
    new = now - before - {str(parent) for parent in apart.parents}
    found = now - new
    whole = {content_of(path) for path in found}
    with stash(new, folder, spare=new - first):
        try:
            yield
        finally:
            own: set[str] = set()
            left = list_files(folder, apart)
            if note is not None and left is not None and found <= left:
                made = read_made(note) - first
                own = {p for p in left - now if made & {p, *map(str, Path(p).parents)}}
            for path in sorted((new & first) | own, key=len, reverse=True):
                with contextlib.suppress(OSError):  # it is not there, or holds what stays
                    if is_folder(path):
                        os.rmdir(path)
                    elif content_of(path) not in whole:
                        os.unlink(path)


def content_of(path: str) -> tuple[int, ...] | None:
    """A file by where its content lies: a move keeps that."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@contextlib.contextmanager
def begin_as_first(folder: Path, note: Path) -> Iterator[None]:
    """Without what earlier runs made, which `note` names; what is made in here takes its place, and
    is named there in turn.

    A file is taken for a run's where its size and time are as that run left them. Of a run that was
    killed only what there was before it is known: what came since is set aside as well, but never
    removed for another.
    """
    now = list_files(folder)
    if now is None:
        yield
        return
    known = read_note(note)
    signs = known.get("made", {})
    sure = {path for path in now & signs.keys() if signs[path] == sign_of(path)}
    if "before" in known:
        made = now - set(known["before"])
    else:
        made = sure | {path for path in now & signs.keys() if signs[path] is None}
    before = now - made
    write_note(note, {"made": {path: signs[path] for path in sure}, "before": sorted(before)})
    new: set[str] = set()
    with stash(made, folder, spare=sure):
        try:
            yield
        finally:
            new = (list_files(folder) or before) - before
    left = (list_files(folder) or before) - before
    write_note(note, {"made": {p: sign_of(p) if p in new | sure else None for p in sorted(left)}})


def list_left(note: Path, folder: Path) -> tuple[str, ...]:
    """What runs made and left below a folder, by path from there; of a made folder itself alone."""
    paths = read_note(note).get("made", {}).keys()
    tops = {path for path in paths if os.path.dirname(path) not in paths}
    return tuple(sorted(os.path.relpath(path, folder) for path in tops))


def read_note(note: Path) -> Mapping[str, Any]:
    """What a note says; nothing where it can't be read."""
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_note(note: Path, content: Mapping[str, Any]) -> None:
    """Write what was made."""
    replace_file(note, json.dumps(content).encode("utf-8"))


def sign_of(path: str) -> list[int] | None:
    """A file's size and time of change in ns, by which another content is told; none of a folder.
    Contents aren't read: checkpoints are large."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return None if is_folder(path) else [found.st_size, found.st_mtime_ns]
