"""Checks of gateway.yaml's values: types, known keys, secrets; a mistake is one clear error."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from joymigrate.errors import JoyError, did_you_mean

HELP = "see docs/gateway.md for the keys of gateway.yaml"


def secret(raw: Any, path: Path) -> str:
    """A key as it stands, or `env:NAME` for one from the environment."""
    text = str(raw)
    if not text.startswith("env:"):
        return text
    value = os.environ.get(text[4:])
    if not value:
        raise JoyError(
            f"the environment has no {text[4:]}",
            where=str(path),
            help=f"export {text[4:]}=… before joymigrate serve",
        )
    return value


def record(kind: type[Any], raw: Any, where: str, path: Path) -> Any:
    """A frozen dataclass from a mapping: known keys, right types, nothing negative."""
    table = mapping(raw or {}, where, path)
    known = {f.name: f for f in fields(kind)}
    check_keys(table, known, where, path)
    values: dict[str, Any] = {}
    for key, value in table.items():
        wanted = str(known[key].type)
        plain = {"int": int, "float": float, "bool": bool}.get(wanted)
        if wanted.startswith("str"):
            values[key] = None if value is None else str(value)
            continue
        values[key] = checked(value, plain, f"{where}.{key}", path) if plain else value
        if plain and values[key] < 0:
            raise JoyError(
                f"{key} is not negative, got {value}", where=f"{path} {where}", help=HELP
            )
    return kind(**values)


def checked(value: Any, kind: type, where: str, path: Path) -> Any:
    """`value` when it has the type; a whole number passes for a fraction."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise JoyError(f"{where} is {kind.__name__}, got {value!r}", where=str(path), help=HELP)
    return value


def mapping(raw: Any, where: str, path: Path) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise JoyError(f"{where} is a mapping, got {raw!r}", where=str(path), help=HELP)
    return raw


def listed(raw: Any, where: str, path: Path) -> list[Any]:
    """A list, a single item, or nothing."""
    if raw is None:
        return []
    if isinstance(raw, Mapping):
        raise JoyError(f"{where} is a list, got {raw!r}", where=str(path), help=HELP)
    return list(raw) if isinstance(raw, list) else [raw]


def check_keys(table: Mapping[str, Any], known: Any, where: str, path: Path) -> None:
    for key in table:
        if key not in known:
            raise JoyError(
                f"unknown key '{key}' in {where}.{did_you_mean(str(key), list(known))}",
                where=str(path),
                help=HELP,
            )


def number(text: str, where: str, path: Path) -> float | int:
    """A number of a rule's short form."""
    try:
        value = float(text)
    except ValueError:
        raise JoyError(f"not a number: {text!r}", where=f"{path} {where}", help=HELP) from None
    return int(value) if value.is_integer() and "." not in text else value


def url_trouble(url: str) -> str | None:
    """What an upstream's url lacks, or None. A path is allowed: some servers live below one."""
    if not url.startswith(("http://", "https://")):
        return "starts with http:// or https://"
    try:
        parts = urlsplit(url)
        named, _ = parts.hostname, parts.port  # reading the port checks it
    except ValueError:
        return "has a port from 1 to 65535"
    if not named:
        return "names a host"
    return "has no '?' and no '#'" if parts.query or parts.fragment else None
