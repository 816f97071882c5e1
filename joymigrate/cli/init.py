"""Prepare a repository: a paragraph for coding agents in its AGENTS.md."""

from __future__ import annotations

from pathlib import Path

import typer

from joymigrate.cli._output import talk
from joymigrate.cli._scanning import must_exist
from joymigrate.errors import Exit, JoyError


def command(
    path: Path = typer.Argument(Path(), metavar="[PATH]", help="The repository."),
    agents: bool = typer.Option(
        False, "--agents", help="Write or renew our paragraph in AGENTS.md."
    ),
) -> int:
    """Write what a repository needs: with --agents, how coding agents work with joymigrate."""
    from joymigrate.agent import paragraph

    must_exist([path])
    if not agents:
        raise JoyError("nothing was asked for", help="joymigrate init --agents")
    if not path.is_dir():
        raise JoyError("a repository is a folder", where=str(path), help="name its folder")
    changed = paragraph.write(path / paragraph.FILE)
    state = "wrote our paragraph in" if changed else "our paragraph is as it should be in"
    talk([f"{state} {path / paragraph.FILE}"])
    return Exit.OK
