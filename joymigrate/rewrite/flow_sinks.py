"""The ends of the value flow, as data: which arguments are devices or collective backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from joymigrate.chips import read_yaml, rules_root

DEVICE = "device"
BACKEND = "backend"


@dataclass(frozen=True, slots=True)
class Sinks:
    """Argument positions and names by kind (`device`, `backend`)."""

    names: Mapping[str, str]  # parameter, keyword, attribute, option name → kind
    keywords: Mapping[str, str]  # keyword name only → kind
    calls: Mapping[str, Mapping[int, str]]  # dotted callee → position → kind
    methods: Mapping[str, Mapping[int, str]]
    through_calls: Mapping[str, int]
    through_methods: frozenset[str]
    default_calls: Mapping[str, int]
    default_methods: Mapping[str, int]
    device_attributes: frozenset[str]
    backend_calls: frozenset[str]
    modules: tuple[str, ...]  # beginnings of names whose functions take devices only
    implied: frozenset[str]  # calls that mean the origin's device as long as they are given none
    # Calls that mean it by one keyword as long as they are given no other: keyword → that other.
    implied_by: Mapping[str, tuple[str, str]]
    precision: frozenset[str]  # calls that turn automatic mixed precision on
    everyday: frozenset[str]  # attribute names that are not followed from file to file

    def keyword(self, name: str) -> str | None:
        """The kind of value that a keyword argument of this name takes."""
        return self.names.get(name) or self.keywords.get(name)


@cache
def load(origin_device: str) -> Sinks:
    """The table of `rules/common/sinks.yaml`, for programs written for `origin_device`."""
    raw: dict[str, Any] = read_yaml(rules_root() / "common" / "sinks.yaml")
    kinds = (DEVICE, BACKEND)
    calls: dict[str, dict[int, str]] = {}
    methods: dict[str, dict[int, str]] = {}
    for kind in kinds:
        for name, positions in raw[kind]["calls"].items():
            key = name.replace("{origin}", origin_device)
            calls.setdefault(key, {}).update(dict.fromkeys(positions, kind))
        for name, positions in raw[kind]["methods"].items():
            name = name.replace("{origin}", origin_device)
            methods.setdefault(name, {}).update(dict.fromkeys(positions, kind))
    return Sinks(
        names={
            each: kind for kind in kinds for n in raw[kind]["names"] for each in (n, n.upper())
        },  # `DEVICE` is a constant or a key of a configuration
        keywords={name: kind for kind in kinds for name in raw[kind]["keywords"]},
        calls=calls,
        methods=methods,
        through_calls=raw["through"]["calls"],
        through_methods=frozenset(raw["through"]["methods"]),
        default_calls=raw["defaults"]["calls"],
        default_methods=raw["defaults"]["methods"],
        device_attributes=frozenset(raw["device_attributes"]),
        backend_calls=frozenset(raw["backend_calls"]),
        modules=tuple(name.replace("{origin}", origin_device) for name in raw["modules"]),
        implied=frozenset(raw["implied"]),
        implied_by={name: (words[0], words[1]) for name, words in raw["implied_by"].items()},
        precision=frozenset(raw["precision"]),
        everyday=frozenset(raw["everyday"]),
    )
