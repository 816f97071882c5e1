"""How jobs files write arrays, dependencies and commands."""

from __future__ import annotations

import re
import shlex

from joymigrate.errors import JoyError, did_you_mean

CONDITIONS = ("afterok", "afterany", "afternotok", "after")
PART = r"\d+(?:-\d+(?::[1-9]\d*)?)?"
ARRAY = re.compile(rf"(?P<listed>{PART}(?:,{PART})*)(?:%(?P<most>[1-9]\d*))?")
ARRAY_MOST = 10_000  # members of one array


def array_of(text: str | int) -> tuple[list[int], int]:
    """Indices of an array and how many run at once: `8`, `0-9`, `0-9:2`, `1,3,7`, each with `%2`.

    No index for an empty text; `JoyError` for one that cannot be read. The notation is Slurm's,
    where a number alone is how many there are.
    """
    if text == "":
        return [], 0
    match = ARRAY.fullmatch(str(text).replace(" ", ""))
    if match is None:
        raise JoyError(
            f"`array` is {text!r}", where="array", help="for example 8, 0-9, 0-9:2, 1,3,7, 0-99%4"
        )
    listed, most = match["listed"], int(match["most"] or 0)
    found: list[int] = []
    if listed.isdigit():
        found = list(range(min(int(listed), ARRAY_MOST + 1)))
    else:
        for part in listed.split(","):
            first, _, rest = part.partition("-")
            last, _, step = rest.partition(":")
            end = int(last or first)
            found += range(int(first), min(end, int(first) + ARRAY_MOST * 10) + 1, int(step or 1))
    if not found or len(found) > ARRAY_MOST or len({*found}) < len(found):
        raise JoyError(
            f"`array` {text!r} has {len(found)} members",
            where="array",
            help=f"different indices, 1 to {ARRAY_MOST} of them",
        )
    return found, most or len(found)


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
