"""A rewritten copy of a tree elsewhere; the original stays as it is.

The copy is made beside its place and renamed there when it is complete. It has a ledger of its
own, so `status` and `rollback` work in it.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.ledger import FOLDER

MARK = "output.json"
SCHEMA = "joymigrate.output/1"
# Version control belongs to the original; caches are made again.
LEFT_OUT = (".git", ".hg", ".svn", ".jj", ".bzr", FOLDER, "__pycache__")


def rewritten_copy(
    paths: Sequence[Path], root: Path, output: Path, write: Callable[[Path], None]
) -> list[str]:
    """Copy `paths` (at or below `root`) to `output`, let `write` rewrite the copy, put it in place.

    Returns the environments that were left out, relative to `root`. Refuses an `output` that is
    not empty, unless it is the untouched result of an earlier copy.
    """
    output = output.absolute()
    refuse_occupied(output, root)
    part = output.with_name(f".{output.name}.{uuid.uuid4().hex[:8]}.joymigrate-tmp")
    try:
        part.mkdir(parents=True)
        left = list(copy(paths, root, part, {output.resolve(), part}))
        write(part)
        mark(part, root)
        swap(part, output)
    except OSError as error:
        raise JoyError(
            f"cannot write the copy: {error.strerror or error}",
            where=str(error.filename or output),
            help="name a folder that you can write with -o",
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return left


def copy(paths: Iterable[Path], root: Path, part: Path, never: set[Path]) -> Iterator[str]:
    """Copy files and links with modes and times; yields the environments left out."""
    for path in paths:
        path = path.resolve()
        if path.is_file():
            target = part / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
            continue
        for folder, names, files in os.walk(path):
            here = Path(folder)
            target = part / here.relative_to(root)
            target.mkdir(parents=True, exist_ok=True)
            target.chmod(stat.S_IMODE(here.stat().st_mode) | stat.S_IRWXU)
            links = [name for name in names if (here / name).is_symlink()]
            for name in (*links, *files):
                copy_one(here / name, target / name, root)
            environments = [n for n in names if (here / n / "pyvenv.cfg").is_file()]
            yield from ((here / n).relative_to(root).as_posix() for n in environments)
            names[:] = [
                name
                for name in names
                if name not in LEFT_OUT
                and name not in links
                and name not in environments
                and here / name not in never
            ]


def copy_one(source: Path, target: Path, root: Path) -> None:
    """Copy one file or link; sockets, pipes and devices stay behind.

    A link out of `root` that is relative would lead elsewhere from a copy: it becomes absolute.
    """
    if source.is_symlink() and not os.path.isabs(text := os.readlink(source)):
        place = Path(os.path.normpath(source.parent / text))
        if not place.is_relative_to(root):
            os.symlink(place, target)
            return
    if source.is_symlink() or source.is_file():
        shutil.copy2(source, target, follow_symlinks=False)


def refuse_occupied(output: Path, root: Path) -> None:
    """Refuse a folder with content that is not ours, or that someone worked in since."""
    if output.resolve() == root or root.is_relative_to(output.resolve()):
        raise JoyError(
            "the copy cannot take the place of the original",
            where=str(output),
            help="name another folder with -o, or rewrite in place without it",
        )
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    try:
        known = json.loads((output / FOLDER / MARK).read_bytes())
    except (OSError, ValueError):
        known = {}
    if known.get("schema") != SCHEMA:
        raise JoyError(
            "the output folder is not empty" if output.is_dir() else "the output is not a folder",
            where=str(output),
            help="name a new folder with -o, or remove this one",
        )
    if known["files"] != listing(output):
        raise JoyError(
            "the output folder has changed since joymigrate wrote it",
            where=str(output),
            help="name a new folder with -o, or remove this one",
        )


def listing(folder: Path) -> dict[str, list[int]]:
    """Size and time of every file of a copy, by POSIX path; enough to see that one was edited."""
    found = {}
    for here, names, files in os.walk(folder):
        names[:] = [name for name in names if name not in LEFT_OUT]
        for name in files:
            path = Path(here, name)
            status = path.lstat()
            found[path.relative_to(folder).as_posix()] = [status.st_size, status.st_mtime_ns]
    return found


def mark(part: Path, root: Path) -> None:
    """Say in the copy what it is, so that a later run may replace it."""
    (part / FOLDER).mkdir(exist_ok=True)
    (part / FOLDER / ".gitignore").write_text("*\n", encoding="utf-8")
    document = {"schema": SCHEMA, "source": str(root), "files": listing(part)}
    (part / FOLDER / MARK).write_text(json.dumps(document), encoding="utf-8")


def swap(part: Path, output: Path) -> None:
    """Put the finished copy in its place; an earlier one goes only when the new one stands."""
    if not output.exists():
        os.rename(part, output)
        return
    old = part.with_name(part.name + "-old")
    os.rename(output, old)
    os.rename(part, output)
    shutil.rmtree(old)
