"""Put the tree back as it was before a step."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from joymigrate.cli._output import emit
from joymigrate.errors import Exit, JoyError

if TYPE_CHECKING:
    from joymigrate.ledger import RolledBack


def command(
    step: str | None = typer.Argument(
        None, metavar="[STEP]", help="A step's id (3, 0003) or stage (S4); default: the latest."
    ),
    project: Path = typer.Option(
        Path(), "--project", metavar="DIR", help="A folder of the project."
    ),
    force: bool = typer.Option(
        False, "--force", help="Overwrite edits made since; the rollback's own step keeps them."
    ),
    quiet: bool = typer.Option(False, "-q", "--quiet"),
) -> int:
    """Put the tree back as it was before a step, with every step after it undone as well.

    Without STEP: before the latest change that was not rolled back yet. Refuses when files were
    edited since. Doing it twice changes nothing.
    """
    from joymigrate.ledger import Ledger

    ledger = Ledger.of(project)
    if not ledger.exists():
        raise JoyError(
            "joymigrate has recorded nothing here",
            where=str(ledger.root),
            help="name a folder of the project: joymigrate rollback --project DIR",
        )
    done = ledger.rollback(step, force=force, command=shlex.join(["joymigrate", *sys.argv[1:]]))
    emit("\n".join(lines(done, quiet)) + "\n")
    return Exit.OK


def lines(done: RolledBack, quiet: bool) -> list[str]:
    """What was done, for people."""
    found = []
    if done.recovered is not None:
        state = "completed first" if done.recovered.completed else "taken back"
        found.append(f"The interrupted step {done.recovered.step.id} was {state}.")
    if done.target is None:
        return [*found, "Nothing to roll back."] if done.recovered is None else found
    if not quiet:
        for record, undone in zip(done.records, done.undone, strict=True):
            found.append(f"step {undone.id} ({undone.kind}) undone as step {record.id}:")
            found += [f"  {file.path}{removed_mark(file.sha256)}" for file in record.outputs]
        found += [
            f"edited since and overwritten: {path} (back with: joymigrate rollback "
            f"{done.records[0].id})"
            for path in done.overwritten
        ]
    checkpoint = done.target.details.get("checkpoint")
    if checkpoint:
        found.append(f"The checkpoint of that step is {checkpoint}; checkpoints stay as they are.")
    if not done.undone:
        return [*found, f"Step {done.target.id} is rolled back already; nothing to do."]
    files = len({file.path for record in done.records for file in record.outputs})
    return [
        *found,
        f"The tree is as it was before step {done.undone[-1].id} "
        f"({files} file{'' if files == 1 else 's'} put back).",
    ]


def removed_mark(sha256: str | None) -> str:
    """Marks a file that the rollback removed."""
    return " (removed)" if sha256 is None else ""
