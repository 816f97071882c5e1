"""How jobs files write dependencies and commands."""

from __future__ import annotations

import shlex

from joymigrate.errors import JoyError, did_you_mean

CONDITIONS = ("afterok", "afterany", "afternotok", "after")


def split_after(item: str) -> tuple[str, str]:
    """Condition and job of `afterok:NAME`; a name alone means `afterok`."""
    condition, _, name = item.partition(":")
    if not name:
        condition, name = "afterok", item
    if condition not in CONDITIONS or not name:
        raise JoyError(
            f"`after` is {item!r}.{did_you_mean(condition, CONDITIONS)}",
            where="after",
            help=f"NAME, or one of {', '.join(f'{one}:NAME' for one in CONDITIONS)}",
        )
    return condition, name


def split_command(command: str | tuple[str, ...]) -> tuple[str, ...]:
    """A command's words: a list as it stands, a line with a shell's quotes."""
    if not isinstance(command, str):
        return command
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise JoyError(f"`command` {command!r}: {error}", where="command") from error
