"""The project as it was before joymigrate rewrote it, in a folder of its own.

What the user changed since is not in it: such edits belong to the target's side alone, where a
comparison sees what they do. A file that is new since then is taken as it is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

from joymigrate.journey.tree import LARGEST, SKIPPED
from joymigrate.ledger import Ledger, Step, sha256
from joymigrate.ledger.entry import Entry, read_manifest
from joymigrate.ledger.rollback import find_undone


def rewrites(ledger: Ledger, project: Path) -> list[Step]:
    """The rewrites below `project` that hold, oldest first."""
    steps = ledger.steps()
    gone = find_undone(steps)
    return [
        step
        for step in steps
        if step.kind == "rewrite" and step.id not in gone and touches(ledger, step, project)
    ]


def entries(ledger: Ledger, step: Step) -> list[Entry]:
    """The files that a step changed."""
    return read_manifest(ledger.home, step.id) or []


def touches(ledger: Ledger, step: Step, project: Path) -> bool:
    """Whether a step changed a file below `project`."""
    return any((ledger.root / e.path).is_relative_to(project) for e in entries(ledger, step))


def keep_first(project: Path, first: Path) -> None:
    """Keep the project in `first`, while no rewrite holds in it."""
    shutil.rmtree(first, ignore_errors=True)
    copy(project, first)


def restore_original(
    ledger: Ledger, steps: Sequence[Step], project: Path, scratch: Path, first: Path
) -> None:
    """Lay the project without the rewrites `steps` into `scratch`: files as they are kept in
    `first`, where that was what these rewrites began with, else from the ledger."""
    shutil.rmtree(scratch, ignore_errors=True)
    known = first.is_dir() and began_with(ledger, steps, project, first)
    if known:
        shutil.copytree(first, scratch, symlinks=True)
    copy(project, scratch)
    for step in reversed(steps):
        for entry in entries(ledger, step):
            path = ledger.root / entry.path
            if not path.is_relative_to(project):
                continue
            inside = path.relative_to(project)
            kept = first / inside
            if not known or not kept.is_file() or kept.is_symlink():
                take_back(ledger, step, entry, scratch / inside)


def began_with(ledger: Ledger, steps: Sequence[Step], project: Path, first: Path) -> bool:
    """Whether the first of the rewrites found the files as `first` has them."""
    for entry in entries(ledger, steps[0]):
        path = ledger.root / entry.path
        if path.is_relative_to(project) and entry.before is not None:
            kept = first / path.relative_to(project)
            if not kept.is_file() or sha256(kept.read_bytes()) != entry.before:
                return False
    return True


def take_back(ledger: Ledger, step: Step, entry: Entry, target: Path) -> None:
    """Give one file of the copy its content from before `step`."""
    if entry.before is None:
        target.unlink(missing_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)  # a link would be written through, into the project
    target.write_bytes((ledger.folder(step.id) / "before" / entry.before).read_bytes())


def copy(project: Path, scratch: Path) -> None:
    """Copy what `scratch` lacks of a project; big files and folders of data are linked, not
    copied."""
    scratch.mkdir(parents=True, exist_ok=True)
    for path in sorted(project.iterdir()):
        target = scratch / path.name
        if path.name in SKIPPED or path.name.startswith(".git") or target.is_symlink():
            continue
        if path.is_dir() and not path.is_symlink() and has_code(path):
            copy(path, target)
        elif target.exists():
            continue
        elif path.is_file() and path.stat().st_size <= LARGEST:
            shutil.copy2(path, target)
        else:
            target.symlink_to(path.resolve())


def has_code(folder: Path) -> bool:
    """Whether a folder holds a source file that Python could import, or text to configure it."""
    for _, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in SKIPPED]
        if any(name.endswith((".py", ".sh", ".yaml", ".yml", ".toml", ".cu")) for name in names):
            return True
    return False


def line_before(ledger: Ledger, steps: Sequence[Step], project: Path, path: str, line: int) -> int:
    """Which line of the file as it was became `line` of the rewritten one."""
    for step in reversed(steps):
        for entry in entries(ledger, step):
            reached = ledger.root / entry.path
            if reached != project / path or entry.before is None or not reached.is_file():
                continue
            old = (ledger.folder(step.id) / "before" / entry.before).read_bytes().splitlines()
            new = reached.read_bytes().splitlines()
            line = map_line(old, new, line)
    return line


def map_line(old: Sequence[bytes], new: Sequence[bytes], line: int) -> int:
    """The line of `old` that `line` of `new` comes from, counted from 1."""
    blocks = SequenceMatcher(None, new, old, autojunk=False).get_opcodes()
    for _, start, end, before, after in blocks:
        if start < line <= end:
            return min(before + line - start, max(after, before + 1))
    return line
