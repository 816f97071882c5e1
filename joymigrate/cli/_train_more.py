"""`train tasks`, `train storage`, and `--engine` of `train` itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from joymigrate.cli._answers import Answer, answers
from joymigrate.errors import Exit

if TYPE_CHECKING:
    from joymigrate.run.train.job import Job


def register(app: typer.Typer) -> None:
    """Add the commands to `train`."""
    app.command("tasks")(tasks)
    app.command("storage")(storage)


@answers("tasks")
def tasks() -> Answer:
    """List what can be learned: here, and through other trainers (--engine)."""
    from joymigrate.run.train import engines
    from joymigrate.run.train import tasks as known

    made = {name: engines.find(name).tasks for name in engines.names()}
    own = known.names()
    every = sorted({*own, *(task for names in made.values() for task in names)})
    rows = [
        {
            "task": name,
            "own": name in own,
            "engines": [engine for engine, names in made.items() if name in names],
            "record": known.find(name).SCHEMA if name in own else None,
        }
        for name in every
    ]
    lines = []
    for row in rows:
        through = ", ".join(engine for engine in made if row["task"] in made[engine])
        where = "here" if row["own"] else "engine"
        lines.append(f"{row['task']:<22} {where:<7} {through:<30} {row['record'] or ''}".rstrip())
    lines.append(f"{len(rows)} tasks, {len(own)} trained here; the others by the engines named")
    return Answer({"schema": "joymigrate.tasks/1", "tasks": rows}, "\n".join(lines) + "\n")


@answers("storage")
def storage(run: Path = typer.Argument(..., help="The run folder.")) -> Answer:
    """Bytes of a run's token cache and checkpoints, and if equal content were stored once."""
    from joymigrate.run.train import storage as measuring

    found = measuring.storage(run)
    return Answer(found, measuring.text(found))


def elsewhere(job: Job, engine: str, *, show: bool) -> int:
    """Render the job for another trainer, and run it unless it shall only be shown."""
    from joymigrate.cli._output import emit, talk
    from joymigrate.run.train import engines
    from joymigrate.run.train.engines import engine_command

    kind = engines.find(engine)
    made = engine_command.render(kind, job)
    if made.told:
        talk([f"{engine} is told: {', '.join(made.told)}"])
    if made.left_out:
        talk([f"{engine} is not told: {', '.join(made.left_out)}"])
    if not show:
        return engine_command.start(kind, made)
    for path, text in made.files.items():
        emit(f"# {path}\n{text}\n")
    emit(made.text() + "\n")
    return Exit.OK
