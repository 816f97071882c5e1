"""The project as it was before joymigrate rewrote it, in a folder of its own.

What the user changed since stays: where a rewritten file was edited, the rewrite's edits are taken
back around those of the user; where that can't be done, the file is the ledger's copy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
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


def restore_original(ledger: Ledger, steps: Sequence[Step], project: Path, scratch: Path) -> None:
    """Lay the project without the rewrites `steps` into `scratch`."""
    shutil.rmtree(scratch, ignore_errors=True)
    copy(project, scratch)
    for step in reversed(steps):
        for entry in entries(ledger, step):
            path = ledger.root / entry.path
            if not path.is_relative_to(project):
                continue
            take_back(ledger, step, entry, scratch / path.relative_to(project), project)


def take_back(ledger: Ledger, step: Step, entry: Entry, target: Path, project: Path) -> None:
    """Give one file of the copy its content from before `step`: without the rewrite's edits where
    the user's stand beside them, else the ledger's copy."""
    known = target.is_file() and sha256(target.read_bytes()) == entry.after
    if not known and undo_edits(ledger, step, entry, target, project):
        return
    if entry.before is None:
        target.unlink()
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes((ledger.folder(step.id) / "before" / entry.before).read_bytes())


def undo_edits(ledger: Ledger, step: Step, entry: Entry, target: Path, project: Path) -> bool:
    """Take the rewrite's edits out of a file that was edited since."""
    if entry.before is None:  # a file of ours that the user changed or removed
        target.unlink(missing_ok=True)
        return True
    patch = ledger.folder(step.id) / "reverse.patch"
    depth = len(project.relative_to(ledger.root).parts)
    inside = (ledger.root / entry.path).relative_to(project).as_posix()
    scratch = target.parents[len(Path(inside).parts) - 1]
    command = ["git", "apply", f"-p{depth + 1}", "-C1", f"--include={inside}", str(patch)]
    try:
        # Not the repository that the copy may lie in: its names would not be the patch's.
        done = subprocess.run(
            command,
            cwd=scratch,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(scratch.parent)},
            capture_output=True,
        )
    except OSError:
        return False
    return done.returncode == 0


def copy(project: Path, scratch: Path) -> None:
    """Copy a project; big files and folders of data are linked, not copied."""
    scratch.mkdir(parents=True)
    for path in sorted(project.iterdir()):
        target = scratch / path.name
        if path.name in SKIPPED or path.name.startswith(".git"):
            continue
        if path.is_dir() and not path.is_symlink() and has_code(path):
            copy(path, target)
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
