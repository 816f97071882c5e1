"""Settings that a command hands to the processes of the user's program: a dataclass in a file."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

from joymigrate.errors import JoyError

FILE = "settings.json"  # in the folder of a session
Settings = TypeVar("Settings")


def write(settings: Any, file: Path) -> None:
    """Store a dataclass of JSON values, paths and tuples."""
    file.write_text(json.dumps(asdict(settings), default=str), encoding="utf-8")


def read(kind: type[Settings], file: Path) -> Settings:
    """What `write` stored. Raises OSError or ValueError where it can't be read."""
    raw = json.loads(file.read_text(encoding="utf-8"))
    for name, hint in get_type_hints(kind).items():
        if hint is Path:
            raw[name] = Path(raw[name])
        elif get_origin(hint) is tuple:
            raw[name] = tuple(raw[name])
    return kind(**raw)


def of_session(kind: type[Settings], variable: str, what: str, command: str) -> Settings | None:
    """The settings in the folder that an environment variable names; None where it is not set.

    Raises JoyError where the folder is gone: `what` that `command` started is over.
    """
    folder = os.environ.get(variable)
    if not folder:
        return None
    path = Path(folder) / FILE
    try:
        return read(kind, path)
    except (OSError, ValueError):
        raise JoyError(
            f"{variable} names a {what} that is over",
            where=str(path),
            help=f"unset {variable}; `joymigrate {command} -- COMMAND` sets it",
        ) from None
