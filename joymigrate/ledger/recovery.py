"""Ending a change that its process could not end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.ledger import entry, tree
from joymigrate.ledger.entry import Entry
from joymigrate.ledger.lock import hold_lock
from joymigrate.ledger.place import home_of, unwritable
from joymigrate.ledger.step import Step, from_json
from joymigrate.ledger.transaction import PENDING, beside_of, discard, finish, undo


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found unfinished, and whether it was completed or taken back."""

    step: Step
    completed: bool


def is_pending(root: Path) -> bool:
    """Whether an interrupted change waits to be ended."""
    return (home_of(root) / PENDING).exists()


def recover(root: Path, keep: Callable[[str, bytes], None] | None = None) -> Recovered | None:
    """End an interrupted change; None when there is none. The caller holds the lock.

    A change is completed, or taken back where that had begun. When a file was edited after the
    interruption nothing is touched and `JoyError` names it. With `keep` the old tree is restored
    even so, and `keep(path, content)` gets what was edited first.
    """
    home = home_of(root)
    journal = home / PENDING
    try:
        raw = json.loads(journal.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise JoyError(
            f"cannot read the journal of an interrupted command: {error}",
            where=str(journal),
            help="restore the file from a backup, or remove it and check the tree by hand",
        ) from None
    step = from_json(raw["step"], str(journal))
    entries = [entry.from_json(item) for item in raw["entries"]]
    foreign = [e for e in entries if tree.hash_of(root / e.path) not in (e.before, e.after)]
    if foreign and keep is None:
        raise JoyError(
            f"step {step.id} ({step.kind}) was interrupted, and these files were edited since: "
            + ", ".join(item.path for item in foreign),
            where=str(root),
            help="joymigrate rollback --force puts the tree back and keeps a copy of the edits",
        )
    completes = raw["direction"] == "forward" and keep is None
    try:
        for item in entries:
            beside_of(root / item.path).unlink(missing_ok=True)
        if completes:
            refuse_loss(home, root, entries)
            finish(root, step, entries)
            return Recovered(step, completed=True)
        for item in foreign:
            data = tree.read(root / item.path)
            if data is not None and keep is not None:
                keep(item.path, data)
        undo(root, step, entries, force=keep is not None)
        discard(home, step)
    except OSError as error:
        raise unwritable(Path(error.filename or root), error) from None
    return Recovered(step, completed=False)


def end_change(root: str) -> None:
    """Recover the tree at `root`, whose writer is dead: what the watcher calls."""
    with hold_lock(home_of(Path(root))):
        recover(Path(root))


def refuse_loss(home: Path, root: Path, entries: list[Entry]) -> None:
    """A change can't be completed when someone removed what was staged for it."""
    for number, item in enumerate(entries):
        staged = home / "stage" / str(number)
        done = tree.hash_of(root / item.path) == item.after
        if item.after is not None and not done and not staged.exists():
            raise JoyError(
                f"the new content of {item.path} is lost",
                where=str(staged),
                help="joymigrate rollback --force puts the tree back",
            )
