"""Arguments from outside, held against their schema; paths that stay below the roots."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from joymigrate.agent.door.tools import MOST_TEXT, MOST_WORDS, ToolSpec
from joymigrate.errors import JoyError, did_you_mean

KINDS: dict[str, type] = {"string": str, "integer": int, "boolean": bool, "array": list}
SHOWN = 80  # characters of a value that an error quotes


def check(tool: ToolSpec, given: Mapping[str, Any], roots: Sequence[Path]) -> dict[str, Any]:
    """The arguments of a call with its paths resolved, and `folder`: the project it runs in.

    What the schema does not name, a path outside the roots, or a value of another kind or size
    raises `JoyError`.
    """
    unknown = [key for key in given if key not in tool.arguments]
    if unknown:
        hint = did_you_mean(str(unknown[0]), tool.arguments)
        raise JoyError(
            f"{tool.name} has no argument {quote(unknown[0])}.{hint}",
            help=f"its arguments: {', '.join(tool.arguments)}",
        )
    missing = [key for key in tool.required if key not in given]
    if missing:
        raise JoyError(f"{tool.name} needs '{missing[0]}'", help=f"give {', '.join(tool.required)}")
    found = dict(given)
    for key, value in given.items():
        schema = tool.arguments[key]
        check_value(key, value, schema)
        if schema.get("format") == "path":
            found[key] = str(resolve(key, value, roots))
    path = Path(found["path"]) if "path" in found else None
    if path is not None:
        found["folder"] = str(path if path.is_dir() else path.parent)
    return found


def check_value(key: str, value: Any, schema: Mapping[str, Any]) -> None:
    """Refuse a value of another kind, form or size than its schema says."""
    kind = schema["type"]
    if not isinstance(value, KINDS[kind]) or (kind == "integer" and isinstance(value, bool)):
        raise JoyError(f"'{key}' is {quote(value)}", help=f"its type is {kind}")
    if isinstance(value, str):
        check_text(key, value)
        pattern, choices = schema.get("pattern"), schema.get("enum")
        if pattern and not re.fullmatch(pattern, value):
            raise JoyError(f"'{key}' is {quote(value)}", help=f"its form is {pattern}")
        if choices and value not in choices:
            raise JoyError(f"'{key}' is {quote(value)}", help=f"one of {', '.join(choices)}")
    if isinstance(value, int) and kind == "integer":
        least, most = schema.get("minimum", 0), schema.get("maximum", 10**9)
        if not least <= value <= most:
            raise JoyError(f"'{key}' is {value}", help=f"from {least} to {most}")
    if isinstance(value, list):
        if not 0 < len(value) <= MOST_WORDS:
            raise JoyError(f"'{key}' has {len(value)} words", help=f"from 1 to {MOST_WORDS}")
        for word in value:
            check_value(key, word, schema["items"])


def check_text(key: str, value: str) -> None:
    """Refuse text that is too long, or that no command line can carry."""
    if len(value) > MOST_TEXT:
        raise JoyError(f"'{key}' has {len(value):,} characters", help=f"at most {MOST_TEXT:,}")
    if "\0" in value or any(0xD800 <= ord(one) < 0xE000 for one in value):
        raise JoyError(f"'{key}' holds a character that no path and no command has")


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
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
