"""Which steps a rollback takes back, whether it may, and what it writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.ledger import tree
from joymigrate.ledger.entry import Entry, read_manifest
from joymigrate.ledger.place import home_of
from joymigrate.ledger.step import Step
from joymigrate.ledger.tree import Change

KIND = "rollback"


def find_undone(steps: Sequence[Step]) -> dict[str, str]:
    """Steps that hold no more, and the rollback that took each back.

    A rollback that was rolled back itself does not count: what it undid holds again.
    """
    gone: dict[str, str] = {}
    for step in reversed(steps):
        if step.undoes and step.id not in gone:
            gone[step.undoes] = step.id
    return gone


def writers(root: Path, steps: Sequence[Step]) -> list[Step]:
    """The steps that changed the tree, oldest first."""
    home = home_of(root)
    return [step for step in steps if read_manifest(home, step.id) is not None]


def latest(root: Path, steps: Sequence[Step]) -> Step | None:
    """The latest change of the tree that still holds and is not a rollback."""
    gone = find_undone(steps)
    live = [s for s in writers(root, steps) if s.id not in gone and s.kind != KIND]
    return live[-1] if live else None


def find(steps: Sequence[Step], name: str) -> Step:
    """The step with this id (`0003`, `3`) or the latest of this stage; else `JoyError`."""
    if name.isdigit():
        name = f"{int(name):04d}"
    for step in reversed(steps):
        if name in (step.id, step.stage):
            return step
    stages = sorted({step.stage for step in steps if step.stage})
    known = [*(step.id for step in steps), *stages]
    listed = f"stages here: {', '.join(stages)}; " if stages else ""
    raise JoyError(
        f"no step '{name}'.{did_you_mean(name, known)}",
        help=f"{listed}joymigrate status lists the steps",
    )


def void(root: Path, steps: Sequence[Step]) -> set[str]:
    """Verdicts about a change that was taken back since, by id."""
    gone = find_undone(steps)
    changes = [step.id for step in writers(root, steps)]
    found = set()
    for step in steps:
        before = [change for change in changes if change < step.id]
        judged = step.judges or (before[-1] if before else None)
        if step.verdict is not None and judged in gone:
            found.add(step.id)
    return found


def plan(root: Path, steps: Sequence[Step], target: Step) -> list[Step]:
    """The steps to take back, newest first, so that the tree is as it was before `target`.

    A step that wrote nothing (a verdict) stands for the change that it judged: the one it names,
    else the latest change before it.
    """
    changes = writers(root, steps)
    start = target.judges or target.id
    if not target.judges and all(change.id != target.id for change in changes):
        gone = find_undone(steps)
        judged = [s.id for s in changes if s.id < target.id and s.id not in gone and s.kind != KIND]
        start = judged[-1] if judged else target.id
    gone = find_undone(steps)
    return [
        step
        for step in reversed(changes)
        if step.id >= start
        and step.id not in gone
        # A rollback of a later step cancels out with that step.
        and not (step.undoes and step.undoes >= start)
    ]


@dataclass(frozen=True, slots=True)
class ForeignEdit:
    """A file that someone else changed after the step that is to be taken back."""

    path: str
    step: str
    happened: str  # edited, removed, created


def foreign(root: Path, steps: Sequence[Step]) -> list[ForeignEdit]:
    """Files that are neither as a step left them nor as they were before it.

    `steps` are to be taken back in this order; every one sees the tree that the one before left.
    """
    home = home_of(root)
    state: dict[str, str | None] = {}
    found = []
    for step in steps:
        for item in read_manifest(home, step.id) or ():
            present = state.get(item.path) if item.path in state else tree.hash_of(root / item.path)
            if present not in (item.before, item.after):
                found.append(ForeignEdit(item.path, step.id, happening(item, present)))
            state[item.path] = item.before
    return found


def happening(item: Entry, present: str | None) -> str:
    """What someone else did to a file."""
    if present is None:
        return "removed"
    return "created" if item.after is None else "edited"


def changes_of(root: Path, step: Step) -> list[Change]:
    """What takes one step back, from the tree as it is now."""
    home = home_of(root)
    changes = []
    for item in read_manifest(home, step.id) or ():
        path = root / item.path
        present = tree.read(path)
        old = old_content(home, step, item)
        if present == old:
            continue
        mode = item.before_mode if item.before_mode != item.after_mode or present is None else None
        changes.append(Change(item.path, present, old, mode, prunes=item.folders))
    return changes


def old_content(home: Path, step: Step, item: Entry) -> bytes | None:
    """What a file held before a step."""
    if item.before is None:
        return None
    path = home / "steps" / step.id / "before" / item.before
    try:
        return path.read_bytes()
    except OSError as error:
        raise JoyError(
            f"the old content of {item.path} is missing: {error.strerror}",
            where=str(path),
            help="restore it from a backup of .joymigrate, or from version control",
        ) from None
