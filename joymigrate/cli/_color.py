"""`--color` of every command: one option, given to each of them when it is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import typer

from joymigrate.errors import JoyError, did_you_mean

COLORS = ("auto", "always", "never")


VARIABLES = ("FORCE_COLOR", "NO_COLOR")


def use_color(stream: TextIO) -> bool:
    """Whether to write colour to `stream`: on a terminal, unless NO_COLOR or `--color` say else."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def choose(wish: str | None) -> None:
    """Carry out `--color`: programs that a command starts see it too, as everybody's variables.

    Raises `JoyError` for a word that is none of `COLORS`.
    """
    if wish is None:
        return
    if wish not in COLORS:
        raise JoyError(
            f"--color does not know '{wish}'.{did_you_mean(wish, COLORS)}",
            help=f"one of {', '.join(COLORS)}",
        )
    for name, meant in zip(VARIABLES, ("always", "never"), strict=True):
        if wish == meant:
            os.environ[name] = "1"
        elif wish != "auto":
            os.environ.pop(name, None)


@contextmanager
def kept() -> Iterator[None]:
    """The variables as they were, behind a command line with `--color`."""
    before = {name: os.environ.get(name) for name in VARIABLES}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def carrier(
    color: str | None = typer.Option(
        None,
        "--color",
        metavar="WHEN",
        callback=choose,
        expose_value=False,
        help="Colour in the output: auto, always or never.",
    ),
) -> None:
    """Declares the option in the words of typer, which makes it what its release needs."""


def equip(command: Any) -> None:
    """Give `--color` to a command, or to every command of a group."""
    app = typer.Typer(add_completion=False)
    app.command()(carrier)
    option = next(one for one in typer.main.get_command(app).params if one.name == "color")
    waiting = [command]
    while waiting:
        one = waiting.pop()
        inner = list(getattr(one, "commands", {}).values())
        waiting += inner
        if not inner:
            one.params.append(option)
