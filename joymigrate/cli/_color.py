"""What `--color` and everybody's variables mean for the colour of an output."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

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
def keep_variables() -> Iterator[None]:
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
