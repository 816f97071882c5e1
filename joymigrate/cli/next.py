"""The one next step of a migration."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli._answers import Answer, answers
from joymigrate.cli._language import OPTION as LANG
from joymigrate.cli._language import speaker
from joymigrate.cli._scanning import must_exist


@answers("next")
def command(
    path: Path = typer.Argument(Path(), metavar="[PATH]", help="The project."),
    lang: str | None = LANG,
) -> Answer:
    """Say where a migration stands, and the one next step with the command that judges it."""
    from joymigrate.agent import next_step
    from joymigrate.agent.migration_state import read_standing
    from joymigrate.journey.entries import find_entries

    must_exist([path])
    at = read_standing(path)
    step = next_step.decide(at, find_entries(at.root))
    text = "\n".join(next_step.text_lines(at, step, speaker(lang, path))) + "\n"
    return Answer(next_step.document(at, step), text)
