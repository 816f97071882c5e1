"""Which module of the target is which of the baseline: by name, by a map, then by order inside an
aligned module. What finds no partner is not compared, and says so. Pure data, no torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml

from joymigrate.errors import JoyError
from joymigrate.schema import DocumentSource, read, setting

SCHEMA = "joymigrate.alignment/1"


@dataclass(frozen=True, slots=True)
class NameMap:
    """Names that differ: baseline → target, and names not to compare."""

    modules: Mapping[str, str] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModulePair:
    """One module with another name in the target."""

    OPEN: ClassVar[bool] = True

    baseline: str
    target: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AlignmentMap:
    """A file of schema `joymigrate.alignment/1`."""

    OPEN: ClassVar[bool] = True

    schema: str = setting(choices=(SCHEMA,))
    modules: tuple[ModulePair, ...] = ()
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlainMap:
    """Names that differ: baseline to target."""

    REST: ClassVar[str] = "modules"

    modules: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Alignment:
    """Pairs of modules and how they were found; what has no partner on either side."""

    baseline_names: dict[str, str]  # target → baseline
    target_names: dict[str, str]  # baseline → target
    how: dict[str, str]  # baseline → exact, map, order
    only_baseline: tuple[str, ...] = ()
    only_target: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For `replay.json`: only what is not exact."""
        return {
            "renamed": {b: t for b, t in self.target_names.items() if b != t},
            "how": {b: h for b, h in self.how.items() if h != "exact"},
            "only_baseline": list(self.only_baseline),
            "only_target": list(self.only_target),
            "ignored": list(self.ignored),
        }


def read_map(path: Path) -> NameMap:
    """A `joymigrate.alignment/1` file, or a plain mapping {baseline: target}; JSON or YAML."""
    try:
        text = path.read_text(encoding="utf-8")
        raw = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise JoyError(f"cannot read the map: {error.strerror}", where=str(path)) from None
    except (ValueError, yaml.YAMLError) as error:
        raise JoyError(f"the map is no JSON or YAML: {error}", where=str(path)) from None
    help = f"{{baseline name: target name}}, or a file of schema {SCHEMA}"
    if not isinstance(raw, dict):
        raise JoyError("the map of module names holds no mapping", where=str(path), help=help)
    source = DocumentSource(str(path), text)
    if "schema" not in raw:
        return NameMap(read(PlainMap, raw, source, help=help).modules)
    read_in = read(AlignmentMap, raw, source, help=help)
    pairs = {pair.baseline: pair.target for pair in read_in.modules}
    reasons = {pair.baseline: pair.reason for pair in read_in.modules}
    return NameMap(pairs, read_in.ignore, reasons)


def parents(path: str) -> Iterator[str]:
    """The paths above a path, the root's among them."""
    while path:
        path = path.rpartition(".")[0]
        yield path


def map_name(name: str, pairs: Mapping[str, str]) -> str | None:
    """The target's name by the longest entry that is the name or a parent of it."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        head = ".".join(parts[:length])
        if head in pairs:
            return ".".join(p for p in (pairs[head], *parts[length:]) if p)
    return None


def align(
    baseline: Sequence[Mapping[str, Any]],
    target: Sequence[Mapping[str, Any]],
    names: NameMap | None = None,
) -> Alignment:
    """Pair the modules of two trees, given in the order of `named_modules`."""
    names = names or NameMap()
    ours = {m["path"]: m for m in baseline}
    theirs = {m["path"]: m for m in target}
    pairs: dict[str, str] = {}
    how: dict[str, str] = {}
    for path in ours:
        wanted = map_name(path, names.modules)
        if wanted is not None and wanted in theirs:
            pairs[path], how[path] = wanted, "map"
        elif wanted is None and path in theirs:
            pairs[path], how[path] = path, "exact"
    taken = set(pairs.values())
    for path in list(ours):  # parents come first
        if path not in pairs:
            continue
        for mine, their in by_order(path, pairs[path], ours, theirs, pairs, taken):
            for end in [p for p in ours if p == mine or p.startswith(f"{mine}.")]:
                other = their + end[len(mine) :]
                if other in theirs and end not in pairs and other not in taken:
                    pairs[end], how[end] = other, "order"
                    taken.add(other)
    return Alignment(
        {t: b for b, t in pairs.items()},
        pairs,
        how,
        tuple(p for p in ours if p not in pairs),
        tuple(p for p in theirs if p not in taken),
        names.ignore,
    )


def by_order(
    mine: str,
    their: str,
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    pairs: Mapping[str, str],
    taken: set[str],
) -> list[tuple[str, str]]:
    """Children without partner on both sides, paired in order where class or weights agree."""
    left = [p for p in children(mine, ours) if p not in pairs]
    right = [p for p in children(their, theirs) if p not in taken]
    made = []
    for path in left:
        for place, other in enumerate(right):
            if alike(ours[path], theirs[other]):
                made.append((path, other))
                right = right[place + 1 :]
                break
    return made


def children(path: str, modules: Mapping[str, Any]) -> list[str]:
    """Direct children in order."""
    head = f"{path}." if path else ""
    return [p for p in modules if p.startswith(head) and p and "." not in p[len(head) :]]


def alike(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Same weights; without weights, the same class."""
    if a["params"] or b["params"]:
        return sorted(map(tuple, a["params"].values())) == sorted(map(tuple, b["params"].values()))
    return bool(a["class"] == b["class"])
