"""Operators that torch calls on one backend only, and what it calls on another one instead.

The data lies in `rules/common/ops/aliases.yaml`, and in the chip's own file, which goes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from joymigrate.chips import read_yaml, rules_root
from joymigrate.chips.names import version_key
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.profile.support import Status

COMMON = Path("common") / "ops" / "aliases.yaml"
KEYS = ("to", "fused", "note", "status", "since", "else")


@dataclass(frozen=True, slots=True)
class Alias:
    """What stands behind an operator: another one (`to`), or nothing to compute (`status`).

    `since` is the version of the chip's package from which `to` exists; before it `otherwise`.
    """

    to: str = ""
    fused: bool = False
    note: str = ""
    status: Status | None = None
    since: str = ""
    otherwise: str = ""

    def target(self, version: str) -> str:
        """The operator behind it in this version, as `namespace::base`."""
        old = self.since and version and version_key(version) < version_key(self.since)
        name = self.otherwise if old else self.to
        return name if "::" in name else f"aten::{name}"


@dataclass(frozen=True, slots=True)
class Aliases:
    """Aliases by base name or pattern, and what is known about whole namespaces."""

    exact: Mapping[str, Alias]
    patterns: tuple[tuple[str, Alias], ...]
    namespaces: Mapping[str, Alias]
    own_inputs: Mapping[str, tuple[int, ...]]  # by base name: inputs that the chip makes itself

    def of(self, namespace: str, base: str) -> Alias | None:
        """The alias of an operator; for patterns the longest one wins."""
        if namespace != "aten":
            return self.namespaces.get(namespace)
        if base in self.exact:
            return self.exact[base]
        fitting = [(len(p), a) for p, a in self.patterns if fnmatchcase(base, p)]
        return max(fitting, key=lambda item: item[0])[1] if fitting else None


def load(own: Path | None) -> Aliases:
    """The common aliases under those of a chip's file."""
    exact: dict[str, Alias] = {}
    patterns: dict[str, Alias] = {}
    namespaces: dict[str, Alias] = {}
    own_inputs: dict[str, tuple[int, ...]] = {}
    for path in (rules_root() / COMMON, own):
        if path is None:
            continue
        raw = read_yaml(path) or {}
        if not isinstance(raw, dict):
            raise JoyError("expected a mapping with `aliases`", where=str(path))
        for name, item in (raw.get("aliases") or {}).items():
            (patterns if "*" in name else exact)[str(name)] = read(item, f"{path} aliases.{name}")
        for name, places in (raw.get("own_inputs") or {}).items():
            own_inputs[str(name)] = tuple(int(place) for place in places)
        for name, item in (raw.get("namespaces") or {}).items():
            namespaces[str(name)] = read(item, f"{path} namespaces.{name}")
    return Aliases(exact, tuple(patterns.items()), namespaces, own_inputs)


def read(item: Any, where: str) -> Alias:
    """One alias, checked."""
    if not isinstance(item, dict) or ("to" in item) == ("status" in item):
        raise JoyError("an alias has either `to` or `status`", where=where)
    for key in item:
        if key not in KEYS:
            raise JoyError(f"unknown key '{key}'.{did_you_mean(str(key), KEYS)}", where=where)
    try:
        status = Status(item["status"]) if "status" in item else None
    except ValueError:
        raise JoyError(f"unknown status {item['status']!r}", where=where) from None
    return Alias(
        to=str(item.get("to") or ""),
        fused=bool(item.get("fused")),
        note=str(item.get("note") or ""),
        status=status,
        since=str(item.get("since") or ""),
        otherwise=str(item.get("else") or ""),
    )
