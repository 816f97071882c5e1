"""The steps that joymigrate took in a project, and what can be rolled back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from joymigrate.cli._answers import Answer, answers
from joymigrate.cli._output import talk
from joymigrate.cli._scanning import must_exist
from joymigrate.language import columns

if TYPE_CHECKING:
    from joymigrate.ledger import Ledger, Recovered, StepState

SCHEMA = "joymigrate.status/1"


@answers("status")
def command(
    path: Path = typer.Argument(Path(), metavar="[PATH]", help="A folder of the project."),
) -> Answer:
    """Show the steps of a project: what was done, whether the tree still has it, how to undo it."""
    from joymigrate.ledger import Ledger
    from joymigrate.ledger.stash import restore_stashed

    must_exist([path])
    ledger = Ledger.of(path)
    recovered, (back, full) = ledger.recover(), restore_stashed(ledger.root)
    states, latest = ledger.states(), ledger.latest()
    document = {
        "schema": SCHEMA,
        "root": str(ledger.root),
        "steps": [as_json(state) for state in states],
        "latest": latest.id if latest else None,
        "recovered": recovered_json(recovered),
    }
    if recovered is not None:
        state = "completed" if recovered.completed else "taken back"
        talk([f"note: the interrupted step {recovered.step.id} was {state}"])
    if back:
        talk([f"note: {back} files that a killed run of the program had set aside are back"])
    for room in full:
        talk([f"note: files that others have replaced since a run was killed lie in {room}"])
    return Answer(document, "\n".join(text(ledger, states)) + "\n")


def text(ledger: Ledger, states: list[StepState]) -> list[str]:
    """One line per step, the edited files below it, and how to go back."""
    if not states:
        return [f"No steps yet in {ledger.root}."]
    rows = [row(state) for state in states]
    lines = []
    for state, line in zip(states, columns(rows), strict=True):
        lines.append(line)
        lines += [f"      {path} was edited since" for path in state.edited]
    latest = ledger.latest()
    if latest is None:
        return [*lines, "Nothing to roll back."]
    return [*lines, f"joymigrate rollback takes back step {latest.id} ({latest.kind})."]


def row(state: StepState) -> list[str]:
    """The columns: id, time, kind, what it was about, verdict, the tree."""
    step = state.step
    files = f"{len(step.outputs)} file{'' if len(step.outputs) == 1 else 's'}"
    about = step.subject.name if step.subject else files
    verdict = " ".join(filter(None, (step.stage, step.verdict, step.grade)))
    undoes = f"rollback of {step.undoes}" if step.undoes else step.kind
    fate = state.tree
    if state.rolled_back_by:
        fate = f"rolled back by {state.rolled_back_by}"
    elif state.superseded_by:
        fate = f"rewritten again by {state.superseded_by}"
    return [step.id, step.time, undoes, step.chip or "", about, verdict, fate]


def as_json(state: StepState) -> dict[str, Any]:
    """One step with how the tree stands to it."""
    from joymigrate.ledger import to_json

    return {
        **to_json(state.step),
        "writes": state.writes,
        "tree": state.tree,
        "edited": list(state.edited),
        "superseded_by": state.superseded_by,
        "rolled_back_by": state.rolled_back_by,
        "can_roll_back": state.writes and not state.rolled_back_by and not state.edited,
    }


def recovered_json(recovered: Recovered | None) -> dict[str, Any] | None:
    """An interrupted command that was ended on the way."""
    if recovered is None:
        return None
    return {"step": recovered.step.id, "completed": recovered.completed}
