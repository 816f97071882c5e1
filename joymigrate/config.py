"""`[tool.joymigrate]` of pyproject.toml, or joymigrate.toml, with the source of every value.

Precedence: command line > environment > configuration file > default. An unknown key is an error
that names the nearest known one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, slots=True)
class Option:
    """One configuration key: its type, default and meaning."""

    kind: type
    default: Any
    help: str


OPTIONS: dict[str, Option] = {
    "to": Option(
        str, None, "the chip to migrate to (default: the one whose chip.yaml says `default: true`)"
    ),
    "style": Option(str, "direct", "direct, agnostic or shim"),
    "select": Option(list, [], "rules to use (ids or prefixes)"),
    "ignore": Option(list, [], "rules to leave out (ids or prefixes)"),
    "exclude": Option(list, [], "paths to leave out (.gitignore patterns)"),
    "follow_imports": Option(list, [], "installed packages to scan with the project"),
    "baseline": Option(str, None, "file of known findings that are not reported again"),
    "chip_version": Option(str, None, "version of the chip's torch package, as in chip.yaml"),
    "jobs": Option(int, 0, "processes to use; 0 means one per core"),
    "lang": Option(str, "en", "language of reports: en or zh"),
    "effort": Option(dict, {}, "minutes per site, by tier or rule, for the effort model"),
    "gates": Option(dict, {}, "limits that stop `migrate`"),
}


@dataclass(frozen=True, slots=True)
class Config:
    """Values with where each came from: `default`, a file, `environment` or `command line`."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]

    def __getitem__(self, key: str) -> Any:
        return self.values[key]


def find_file(start: Path) -> Path | None:
    """The nearest configuration file at or above `start`."""
    start = start if start.is_dir() else start.parent
    for folder in (start, *start.parents):
        own = folder / "joymigrate.toml"
        if own.is_file():
            return own
        project = folder / "pyproject.toml"
        if project.is_file():
            return project if "joymigrate" in read_toml(project).get("tool", {}) else None
    return None


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file; a syntax error names the file and the line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise JoyError(
            f"not valid TOML: {error}", where=str(path), help="correct the file"
        ) from None
    except OSError as error:
        raise JoyError(
            f"cannot read the settings: {error.strerror}",
            where=str(path),
            help="name a readable file with --settings",
        ) from None


def load(start: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """The configuration that holds for `start`; `overrides` come from the command line."""
    values = {key: option.default for key, option in OPTIONS.items()}
    sources = dict.fromkeys(values, "default")

    named = os.environ.get("JOYMIGRATE_SETTINGS")
    path = Path(named) if named else find_file(start.resolve())
    if path is not None:
        document = read_toml(path)
        table = document.get("tool", {}).get("joymigrate", {})
        if path.name != "pyproject.toml" and "tool" not in document:
            table = document
        for key, value in table.items():
            values[key] = checked(key, value, path)
            sources[key] = str(path)
    if os.environ.get("JOYMIGRATE_TO"):
        values["to"] = os.environ["JOYMIGRATE_TO"]
        sources["to"] = "environment JOYMIGRATE_TO"
    for key, value in (overrides or {}).items():
        if value is not None and value != [] and value != ():
            values[key] = value
            sources[key] = "command line"
    return Config(values, sources)


def checked(key: str, value: Any, path: Path) -> Any:
    """`value` when `key` is known and the type fits; `JoyError` otherwise."""
    option = OPTIONS.get(key)
    if option is None:
        raise JoyError(
            f"unknown key '{key}'.{did_you_mean(key, OPTIONS)}",
            where=f"{path} [tool.joymigrate]",
            help=f"known keys: {', '.join(OPTIONS)}",
        )
    if not isinstance(value, option.kind) or (option.kind is int and isinstance(value, bool)):
        raise JoyError(
            f"'{key}' must be {option.kind.__name__}, got {value!r}",
            where=f"{path} [tool.joymigrate]",
            help=option.help,
        )
    return value
