"""From patches to a changed tree: what may be written, and one ledger step for all of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.language import Text
from joymigrate.ledger import Change, Ledger, Step, sha256
from joymigrate.model import Patch
from joymigrate.rewrite.diff import write_unified
from joymigrate.rewrite.git import dirty

SHOWN = 10  # names in one error message


@dataclass(frozen=True, slots=True)
class Target:
    """A patch and the file it writes: the one behind a symbolic link, under the project root."""

    patch: Patch
    path: Path
    name: str  # POSIX, relative to the project root


@dataclass(frozen=True, slots=True)
class Applied:
    """What was written. `step` is None when there was nothing to write.

    `left` are patches that were not applied, each with the reason; `notes` are remarks about
    files that were.
    """

    step: Step | None
    targets: tuple[Target, ...] = ()
    left: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def apply(
    patches: Iterable[Patch],
    ledger: Ledger,
    *,
    base: Path | None = None,
    command: str = "",
    chip: str | None = None,
    details: dict[str, object] | None = None,
    artefacts: dict[str, bytes] | None = None,
    allow_dirty: bool = False,
) -> Applied:
    """Write all `patches` as one step of `ledger`, or none of them.

    `base` is what relative paths of patches start from (default: the project root). Refuses, with
    nothing written, when a file is no longer what the patch was computed from, when git has
    uncommitted changes in tracked files (unless `allow_dirty`), or when the tree is read-only.
    """
    targets, left = resolve(patches, ledger.root, base or ledger.root)
    if not targets:
        return Applied(None, left=tuple(left))
    if not allow_dirty:
        refuse_dirty(ledger)
    step = Step(kind="rewrite", command=command, chip=chip, details=details or {})
    changes = [Change(t.name, t.patch.before, t.patch.after) for t in targets]
    notes = tuple(link_notes(targets))
    done = ledger.apply(changes, step, {**diffs(targets), **(artefacts or {})})
    return Applied(done, tuple(targets), tuple(left), notes)


def resolve(
    patches: Iterable[Patch], root: Path, base: Path
) -> tuple[list[Target], list[tuple[str, str]]]:
    """Follow symbolic links, leave out what changes nothing or lies outside the project.

    A file reached by two names is written once. Two patches that differ are our own mistake.
    """
    targets: dict[Path, Target] = {}
    left: list[tuple[str, str]] = []
    for patch in patches:
        if patch.before == patch.after:
            continue
        path = (base / patch.path).resolve()
        if not path.is_relative_to(root):
            left.append(
                (str(base / patch.path), Text("it leads outside the project, to {path}", path=path))
            )
            continue
        target = Target(patch, path, path.relative_to(root).as_posix())
        known = targets.setdefault(path, target)
        if known.patch.after != patch.after:
            raise ValueError(f"two different patches for {path}")
    return sorted(targets.values(), key=lambda target: target.name), left


def refuse_dirty(ledger: Ledger) -> None:
    """Refuse to mix our edits with uncommitted ones of the user.

    Files that are as an earlier step of ours left them don't count: those can be rolled back.
    """
    ours = {
        output.path: output.sha256 for step in ledger.steps() for output in step.outputs
    }  # the last step that wrote a file wins
    theirs = [path for path in dirty(ledger.root) if not is_ours(ledger.root / path, ours, path)]
    if not theirs:
        return
    more = f" and {len(theirs) - SHOWN} more" if len(theirs) > SHOWN else ""
    raise JoyError(
        f"uncommitted changes in {', '.join(theirs[:SHOWN])}{more}",
        where=str(ledger.root),
        help="commit or stash them, so that the migration can be told apart, or use --allow-dirty",
    )


def is_ours(path: Path, ours: dict[str, str | None], name: str) -> bool:
    """Whether a file is exactly as our last step left it."""
    if name not in ours:
        return False
    try:
        return sha256(path.read_bytes()) == ours[name]
    except OSError:
        return ours[name] is None


def link_notes(targets: Sequence[Target]) -> list[str]:
    """Remarks about files that have more than one name on disk."""
    notes: list[str] = []
    for target in targets:
        try:
            names = os.lstat(target.path).st_nlink
        except OSError:
            continue
        if names > 1:
            notes.append(
                Text(
                    "{target} has {names} hard links: this name has the new content, the others "
                    "keep the old one",
                    target=target.name,
                    names=names,
                )
            )
    return notes


def diffs(targets: Sequence[Target]) -> dict[str, bytes]:
    """The step as two patches for reading and for `git apply`: forward and back."""
    forward, back = [], []
    for target in targets:
        before, after = target.patch.before, target.patch.after
        mode = target.path.stat().st_mode if target.path.exists() else 0o644
        forward.append(write_unified(target.name, before, after, mode))
        back.append(write_unified(target.name, after, before, mode))
    return {"change.patch": b"".join(forward), "reverse.patch": b"".join(back)}
