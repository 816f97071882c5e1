"""Files that a run of a program begins without: they lie in `.joymigrate/stash/` while it runs.

Each lies there below a folder of the run, at its own path: where it lies is all that has to be
known to bring it back, so a process may be killed between any two moves. What it left is brought
back by the next command, which puts nothing over what is in its place by then and removes nothing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Collection, Iterator
from pathlib import Path

from joymigrate.ledger.lock import try_lock
from joymigrate.ledger.place import home_of, make_home, project_root, remove_empty_home

STASH = "stash"
LOCK = ".lock"
BYTECODE = "__pycache__"  # Python makes it again


@contextlib.contextmanager
def stash(paths: Collection[str], folder: Path, spare: Collection[str] = ()) -> Iterator[None]:
    """Without some files and folders below `folder`; a folder goes where nothing else lies in it,
    and what can't be moved (a mount) stays.

    They come back after. A file that finds another in its place is removed where it is in `spare`,
    and else stays aside.
    """
    if not paths:
        yield
        return
    root = project_root(folder)
    inside = folder.resolve().relative_to(root)
    is_new = not home_of(root).exists()
    home = make_home(root) / STASH
    home.mkdir(exist_ok=True)
    room = home / secrets.token_hex(4)
    with hold_room(room):  # the name is new: nobody else holds it
        room.mkdir()
        try:
            move_away(paths, folder, room / inside)
            yield
        finally:
            bring_back(room, root, {str(inside / os.path.relpath(path, folder)) for path in spare})
            clear(room)
    if is_new:
        with contextlib.suppress(OSError):
            home.rmdir()
        remove_empty_home(root)


def restore_stashed(path: Path) -> tuple[int, list[Path]]:
    """Bring back what killed processes left aside in a project: how many files came back, and the
    folders that hold those whose place is taken. What a live process holds stays."""
    root = project_root(path)
    home = home_of(root) / STASH
    rooms = sorted(room for room in home.glob("*") if room.is_dir())
    count, full = 0, []
    for room in rooms:
        with hold_room(room) as free:
            if not free:
                continue
            count += bring_back(room, root)
            clear(room)
        if room.exists():
            full.append(room)
    return count, full


@contextlib.contextmanager
def hold_room(room: Path) -> Iterator[bool]:
    """Whether a room is ours alone; the kernel frees it when its holder dies."""
    lock = room.with_suffix(LOCK)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        free = try_lock(handle)
        yield free
        if free and not room.exists():
            lock.unlink(missing_ok=True)
    finally:
        os.close(handle)


def move_away(paths: Collection[str], folder: Path, room: Path) -> None:
    """Files of a folder, then folders that they leave empty."""
    folders = {path for path in paths if is_folder(path)}
    for path in sorted(set(paths) - folders):
        kept = room / os.path.relpath(path, folder)
        kept.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            os.rename(path, kept)
    for path in sorted(folders, key=len, reverse=True):
        with contextlib.suppress(OSError):
            if os.listdir(path) == [BYTECODE]:
                remove_bytecode(path)
            (room / os.path.relpath(path, folder)).mkdir(parents=True, exist_ok=True)
            os.rmdir(path)


def bring_back(room: Path, root: Path, spare: Collection[str] = ()) -> int:
    """Everything goes where it came from; how many files did. Where another is in the place of one
    in `spare` (from `root`), that is removed."""
    back = 0
    for kept in list_files(room):
        name = kept.relative_to(room)
        path = root / name
        with contextlib.suppress(OSError):  # a file is where its folder was
            path.parent.mkdir(parents=True, exist_ok=True)
            if not os.path.lexists(path):
                os.rename(kept, path)
                back += 1
            elif str(name) in spare:
                kept.unlink()
    for place, _, _ in os.walk(room, topdown=False):
        with contextlib.suppress(OSError):
            (root / os.path.relpath(place, room)).mkdir(parents=True, exist_ok=True)
    return back


def clear(room: Path) -> None:
    """A room's empty folders go, and with the last of them the room."""
    for place, _, _ in os.walk(room, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(place)


def list_files(room: Path) -> list[Path]:
    """Everything below a folder that is no folder, links to folders too."""
    found = []
    for place, folders, names in os.walk(room):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        found += [Path(place, name) for name in (*names, *links)]
    return found


def is_folder(path: str) -> bool:
    """Whether a path is a folder, and no link to one."""
    return os.path.isdir(path) and not os.path.islink(path)


def remove_bytecode(folder: str) -> None:
    """Python's compiled files of a folder go."""
    cache = os.path.join(folder, BYTECODE)
    for name in os.listdir(cache):
        os.unlink(os.path.join(cache, name))
    os.rmdir(cache)
