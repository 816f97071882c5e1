"""Changing many files of a tree as one: all of them or none, however the process ends.

The protocol, under the ledger's lock:

1. check that every file still has the content that the change was computed from;
2. write the old contents to `steps/<id>/before/` and the new ones to `stage/`, flushed to disk;
3. start a watcher, a small process of its own session that ends the work if this one dies;
4. write `pending.json`: from here on the change is decided;
5. rename each staged file over its target (a file is old or new, never half);
6. append the step to the ledger, remove `pending.json`.

A process killed before 4 has changed nothing. One killed later leaves `pending.json`, and the
watcher, or else the next joymigrate command in that project, goes on at 5. So a mixed tree exists
only while the renames run, or until the next command where the whole machine died in that moment.
A rename that fails (a full disk, a folder made read-only) turns the direction round: the files
already renamed get their old content back.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.files import replace_file, sync_file, sync_folder
from joymigrate.ledger import disk, entry, log, tree
from joymigrate.ledger.entry import Entry
from joymigrate.ledger.place import home_of, make_home, unwritable
from joymigrate.ledger.step import FileHash, Step, sha256, to_json
from joymigrate.ledger.tree import Change
from joymigrate.ledger.watcher import hold_watcher

PENDING = "pending.json"


def commit(
    root: Path,
    changes: Sequence[Change],
    step: Step,
    artefacts: Mapping[str, bytes] | None = None,
) -> Step:
    """Apply `changes` under `root` as one step and return it as recorded.

    The caller holds the lock and has recovered. `artefacts` are files for `steps/<id>/`. Raises
    `JoyError`, with the tree as it was, when a file changed meanwhile or can't be written.
    """
    entries = [check(root, change) for change in changes]
    refuse_unwritable(root, entries)
    home = make_home(root)
    step = number_step(home, step)
    step = replace(
        step,
        inputs=(*step.inputs, *(FileHash(e.path, e.before) for e in entries if e.before)),
        outputs=(*step.outputs, *(FileHash(e.path, e.after) for e in entries)),
    )
    try:
        prepare(home, step, entries, changes, artefacts or {})
    except BaseException as error:
        discard(home, step)
        raise as_joy_error(root, error) from None
    with hold_watcher(root):
        try:
            write_pending(home, step, entries, forward=True)
            finish(root, step, entries)
        except BaseException as error:
            take_back(root, step, entries)
            raise as_joy_error(root, error) from None
    return step


def as_joy_error(root: Path, error: BaseException) -> BaseException:
    """A refusal of the file system as the user's error; anything else as it is."""
    if isinstance(error, OSError):
        return unwritable(Path(error.filename or root), error)
    return error


def number_step(home: Path, step: Step) -> Step:
    """The step with the next free id and the time of now (UTC). The caller holds the lock."""
    last = max((int(known.id) for known in log.read_log(home)), default=0)
    moment = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return replace(step, id=f"{last + 1:04d}", time=moment)


def check(root: Path, change: Change) -> Entry:
    """Compare one file with `change.before` and note what is there."""
    path = root / change.path
    present = tree.read(path)
    if present != change.before:
        happened = "has changed"
        if present is None:
            happened = "is gone"
        elif change.before is None:
            happened = "exists now"
        raise JoyError(
            f"a file {happened} since it was read; nothing was written",
            where=str(path),
            help="run the command again",
        )
    before_mode = tree.mode_of(path)
    after_mode = change.mode if change.mode is not None else before_mode
    missing = [folder for folder in path.parents if not folder.exists()]
    return Entry(
        path=change.path,
        before=None if change.before is None else sha256(change.before),
        after=None if change.after is None else sha256(change.after),
        before_mode=before_mode,
        after_mode=after_mode if after_mode is not None else tree.usual_mode(),
        folders=tuple(folder.relative_to(root).as_posix() for folder in reversed(missing)),
        prunes=change.prunes,
    )


def refuse_unwritable(root: Path, entries: Iterable[Entry]) -> None:
    """Refuse, before anything is written, when a file or its folder cannot be."""
    for item in entries:
        path = root / item.path
        folder = next(folder for folder in path.parents if folder.exists())
        for target in (folder, path):
            if target.exists() and not os.access(target, os.W_OK):
                raise unwritable(target, PermissionError(errno.EACCES, "it is read-only"))


def prepare(
    home: Path,
    step: Step,
    entries: Sequence[Entry],
    changes: Sequence[Change],
    artefacts: Mapping[str, bytes],
) -> None:
    """Write old contents, new contents, manifest and artefacts, flushed to disk."""
    folder = fresh(home / "steps" / step.id)
    (folder / "before").mkdir()
    stage = fresh(home / "stage")
    files: dict[Path, tuple[bytes, int | None]] = {
        folder / name: (data, None) for name, data in artefacts.items()
    }
    files[folder / entry.MANIFEST] = (
        entry.dump({"entries": [entry.as_json(item) for item in entries]}),
        None,
    )
    for number, (item, change) in enumerate(zip(entries, changes, strict=True)):
        if item.before is not None and change.before is not None:
            files[folder / "before" / item.before] = (change.before, None)
        if change.after is not None:
            files[stage / str(number)] = (change.after, item.after_mode)
    disk.write_all(files)
    for number, item in enumerate(entries):
        if item.before is not None and item.after is not None:
            keep_owner(home.parent / item.path, stage / str(number))
    for path in (stage, folder / "before", folder, home / "steps", home):
        sync_folder(path)


def fresh(folder: Path) -> Path:
    """An empty folder; what a dead process left there is removed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def keep_owner(old: Path, new: Path) -> None:
    """Give the staged file the owner and the extended attributes of the one it replaces."""
    status, staged = os.stat(old), os.stat(new)
    if (status.st_uid, status.st_gid) != (staged.st_uid, staged.st_gid):
        with contextlib.suppress(OSError):  # only root may give a file away
            os.chown(new, status.st_uid, status.st_gid)
            os.chmod(new, staged.st_mode & 0o7777)  # chown clears the set-id bits
    if hasattr(os, "listxattr"):
        with contextlib.suppress(OSError):
            for name in os.listxattr(old):
                os.setxattr(new, name, os.getxattr(old, name))


def write_pending(home: Path, step: Step, entries: Iterable[Entry], *, forward: bool) -> None:
    """Write the journal in one move."""
    document = {
        "schema": "joymigrate.pending/1",
        "direction": "forward" if forward else "back",
        "step": to_json(step),
        "entries": [entry.as_json(item) for item in entries],
    }
    replace_file(home / PENDING, entry.dump(document), durable=True)


def finish(root: Path, step: Step, entries: Sequence[Entry]) -> None:
    """Rename the staged files over their targets, record the step, remove the journal.

    Safe to repeat: a file that has its new content is passed over.
    """
    home = home_of(root)
    for item in entries:
        for folder in item.folders:
            (root / folder).mkdir(exist_ok=True)
    # Until this loop is through, a power cut leaves a mixed tree: nothing but renames in it.
    for number, target in enumerate([root / item.path for item in entries]):
        if entries[number].after is None:
            target.unlink(missing_ok=True)
        else:
            move_into_place(home / "stage" / str(number), target)
    for item in entries:
        if item.after is None:
            remove_folders(root, item.prunes)
    for path in sorted({(root / item.path).parent for item in entries}):
        if path.is_dir():
            sync_folder(path)
    if not is_recorded(home, step):
        log.append(home, step)
    close(home)


def is_recorded(home: Path, step: Step) -> bool:
    """Whether the ledger has this step."""
    return any(known.id == step.id for known in log.read_log(home))


def close(home: Path) -> None:
    """Remove the journal and what was staged."""
    (home / PENDING).unlink(missing_ok=True)
    sync_folder(home)
    shutil.rmtree(home / "stage", ignore_errors=True)


def move_into_place(staged: Path, target: Path) -> None:
    """Rename, also onto another file system: there a copy beside the target is renamed.

    A staged file that is gone was renamed before the interruption.
    """
    try:
        os.replace(staged, target)
    except FileNotFoundError:
        if staged.exists() or not target.exists():
            raise
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        beside = beside_of(target)
        shutil.copy2(staged, beside)
        sync_file(beside)
        os.replace(beside, target)
        staged.unlink()


def beside_of(target: Path) -> Path:
    """The temporary name beside a target, for another file system and for going back."""
    return target.with_name(f".{target.name}.joymigrate-tmp")


def take_back(root: Path, step: Step, entries: Sequence[Entry]) -> None:
    """After a failure: every file gets its old content again, and the step is forgotten."""
    home = home_of(root)
    if is_recorded(home, step):
        return  # the tree is new and the ledger knows; only the tidying failed
    if (home / PENDING).exists():
        write_pending(home, step, entries, forward=False)
        undo(root, step, entries)
    discard(home, step)


def undo(root: Path, step: Step, entries: Sequence[Entry], *, force: bool = False) -> None:
    """The other direction of `finish`. Safe to repeat. Foreign content stays without `force`."""
    home = home_of(root)
    for item in reversed(entries):
        target = root / item.path
        present = tree.hash_of(target)
        if present == item.after or (force and present != item.before):
            restore(home / "steps" / step.id / "before", target, item)
        remove_folders(root, item.folders)
    close(home)


def restore(blobs: Path, target: Path, item: Entry) -> None:
    """Give one file its old content and mode, or remove it where there was none."""
    if item.before is None:
        target.unlink(missing_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = beside_of(target)
    disk.write_durably(beside, (blobs / item.before).read_bytes(), item.before_mode)
    os.replace(beside, target)


def remove_folders(root: Path, folders: Sequence[str]) -> None:
    """Remove folders that a step had made, where they are empty."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            (root / folder).rmdir()


def discard(home: Path, step: Step) -> None:
    """Remove what a step that did not come about has written."""
    shutil.rmtree(home / "stage", ignore_errors=True)
    shutil.rmtree(home / "steps" / step.id, ignore_errors=True)
