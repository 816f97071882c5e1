"""Arguments from outside, held against their schema; paths that stay below the roots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from joymigrate.agent.door.tools import ToolSpec, schema_of
from joymigrate.errors import JoyError

SHOWN = 120  # characters of a value or of a fault that an error quotes


def check(tool: ToolSpec, given: Mapping[str, Any], roots: Sequence[Path]) -> dict[str, Any]:
    """The arguments of a call with its paths resolved, and `folder`: the project it runs in.

    What the schema does not name, a path outside the roots, or a value of another kind or size
    raises `JoyError`. Without a `path` the call is about the root, where there is one alone.
    """
    if "path" in tool.arguments and not {"path"} & {*tool.required, *given}:
        if len(roots) > 1:
            listed = ", ".join(map(str, roots[:3]))
            raise JoyError(f"{tool.name}: which folder is meant?", help=f"path: one of {listed}")
        given = {"path": ".", **given}
    wrong = best_match(Draft202012Validator(schema_of(tool)).iter_errors(given))
    if wrong is not None:
        place = ".".join(map(str, (tool.name, *wrong.absolute_path)))
        raise JoyError(
            f"{place}: {cut(wrong.message)}",
            help=f"the arguments of {tool.name}: {', '.join(tool.arguments) or 'none'}",
        )
    # JSON has one kind of numbers: 2.0 is an integer there, too.
    found: dict[str, Any] = {
        key: int(value) if isinstance(value, float) and value.is_integer() else value
        for key, value in given.items()
    }
    for key, value in given.items():
        if tool.arguments[key].get("format") == "path":
            found[key] = str(resolve(key, value, roots))
    path = Path(found["path"]) if "path" in found else None
    if path is not None:
        found["folder"] = str(path if path.is_dir() else path.parent)
    return found


def resolve(key: str, value: str, roots: Sequence[Path]) -> Path:
    """A path with its links followed, below one of the roots; a relative one from the first."""
    if not roots:
        raise JoyError("no folder may be used", help="the client names its roots, or `mcp ROOT`")
    try:
        path = (roots[0] / value).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise JoyError(
            f"'{key}' is {quote(value)}: {error}", help="name a file or folder"
        ) from None
    if not any(path.is_relative_to(root) for root in roots):
        raise JoyError(
            f"'{key}' leads outside of what may be used: {quote(value)}",
            help=f"a path below {', '.join(map(str, roots[:3]))}",
        )
    if not path.exists():
        raise JoyError("no such file or folder", where=quote(value), help="check the path")
    return path


def meet_roots(ours: Sequence[Path], theirs: Sequence[str] | None) -> list[Path]:
    """The folders that both the server and the client allow; a client without roots adds none."""
    if theirs is None:
        return list(ours)
    named = [path for uri in theirs if (path := read_uri(uri)) is not None]
    both = [b if b.is_relative_to(a) else a for a in ours for b in named
            if a.is_relative_to(b) or b.is_relative_to(a)]  # fmt: skip
    return list(dict.fromkeys(both))


def read_uri(uri: str) -> Path | None:
    """The folder of a `file://` address on this machine."""
    parts = urlsplit(str(uri))
    if (
        parts.scheme != "file"
        or parts.netloc not in ("", "localhost")
        or "\0" in unquote(parts.path)
    ):
        return None
    return Path(unquote(parts.path)).resolve()


def quote(value: Any) -> str:
    """A value as an error shows it: short, on one line."""
    return cut(repr(value))


def cut(text: str) -> str:
    """A text of at most `SHOWN` characters: its beginning and its end."""
    half = SHOWN // 2
    return text if len(text) <= SHOWN else f"{text[:half]}…{text[1 - half :]}"
