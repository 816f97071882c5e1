"""Options that every command has, given to each of them when it is loaded: `--color`, `--quiet`."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from joymigrate.cli import _color, _output
from joymigrate.cli._value_names import name_values

QUIET = "Only the result and errors: no notes, no progress."


@contextmanager
def keep_process() -> Iterator[None]:
    """The process as it was, behind a command line with such options."""
    collecting = gc.isenabled()
    with _color.keep_variables():
        try:
            yield
        finally:
            _output.hush(False)
            if collecting:  # see `_scanning.pause_searches`
                gc.enable()


def carrier(
    color: str | None = typer.Option(
        None,
        "--color",
        metavar="WHEN",
        callback=_color.choose,
        expose_value=False,
        help="Colour in the output: auto, always or never.",
    ),
    quiet: bool = typer.Option(
        False, "-q", "--quiet", callback=_output.hush, expose_value=False, help=QUIET
    ),
) -> None:
    """Declares the options in the words of typer, which makes them what its release needs."""


def equip(command: Any) -> None:
    """Give the options to a command, or to every command of a group.

    A command that has a `--quiet` of its own keeps it, with the same meaning and help. One that
    hands unknown options on to another program gets none: `-q` may be that program's.
    """
    app = typer.Typer(add_completion=False)
    app.command()(carrier)
    shared = {one.name: one for one in typer.main.get_command(app).params}
    waiting = [command]
    while waiting:
        one = waiting.pop()
        inner = list(getattr(one, "commands", {}).values())
        waiting += inner
        if inner:
            continue
        name_values(one)
        one.params.append(shared["color"])
        own = next((each for each in one.params if "--quiet" in each.opts), None)
        if own is not None:
            own.help, own.callback = QUIET, silence
        elif not one.context_settings.get("ignore_unknown_options"):
            one.params.append(shared["quiet"])


def silence(_ctx: Any, _option: Any, value: bool) -> bool:
    """The value of a command's own `--quiet`, which also ends the notes."""
    _output.hush(value)
    return value
