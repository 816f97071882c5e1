"""The packages that pyproject.toml and Pipfile ask for."""

from __future__ import annotations

import re

from joymigrate.language import Text
from joymigrate.rewrite.readers._migration_map import Sites
from joymigrate.rewrite.readers._packages import (
    RULE,
    RequirementChange,
    index_change,
    package_advice,
)
from joymigrate.rewrite.readers._tree import Mapping, MappingEntry, Node, ScalarNode, SequenceNode

LISTS = re.compile(
    r"dependencies|requires|.*\.optional-dependencies|dependency-groups|requirements"
)
TABLES = re.compile(
    r"tool\.poetry(?:\.group\.[^.]+)?\.(?:dev-)?dependencies|packages|dev-packages|"
    r"tool\.pixi\.(?:pypi-)?dependencies|tool\.pdm\.dev-dependencies|tool\.pixi\.feature\..*"
)


def section(sites: Sites, entry: MappingEntry) -> bool:
    """Read a table that names packages; False for a table of another kind."""
    name, table = entry.key.value, entry.value
    if not isinstance(table, Mapping):
        return False
    if TABLES.fullmatch(name):
        for each in table.entries:
            by_name(sites, each)
        return True
    if name in ("project.optional-dependencies", "dependency-groups"):
        for each in table.entries:
            read_list(sites, each.value)
        return True
    if name in ("project", "build-system", "tool.uv"):
        for each in table.entries:
            if LISTS.fullmatch(each.key.value) or each.key.value in ("dev-dependencies",):
                read_list(sites, each.value)
            elif each.key.value.endswith("optional-dependencies"):
                for inner in each.value.entries if isinstance(each.value, Mapping) else ():
                    read_list(sites, inner.value)
        return True
    if re.fullmatch(r"tool\.(?:uv\.index|poetry\.source|pdm\.source)|source", name):
        for each in table.entries:
            if each.key.value == "url" and isinstance(each.value, ScalarNode):
                index(sites, each.value)
        return True
    return name == "project.urls"


def read_list(sites: Sites, node: Node) -> None:
    """A list of requirement strings."""
    if not isinstance(node, SequenceNode):
        return
    items = [item for item in node.items if isinstance(item, ScalarNode)]
    named = {name_of(item.value) for item in items}
    for item in items:
        change = package_advice(item.value, sites.context)
        if change is not None:
            write(sites, item, change, named)


def name_of(requirement: str) -> str:
    """The distribution that a requirement names, as indexes compare names."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[=<>!~;@ ]", requirement)[0]).lower()


def write(sites: Sites, item: ScalarNode, change: RequirementChange, named: set[str]) -> None:
    """One requirement in a list; companions become further items, laid out as this one is."""
    also = [each for each in change.also if name_of(each) not in named]
    if change.after == item.value and not also:
        return
    if change.after is None or not item.verbatim or item.block:
        sites.add(RULE, item.start, item.end, reason=change.reason)
        return
    source = sites.source
    text = source.text
    line = text.rfind("\n", 0, item.start) + 1
    head = text[line : item.start]
    between = " " if head.strip() else source.newline + head
    quote = text[item.start]
    words = [f"{quote}{each}{quote}" for each in (change.after, *also)]
    after = f",{between}".join(words)
    sites.add(RULE, item.start, item.end, after, tier=change.tier, reason=change.reason)


def by_name(sites: Sites, entry: MappingEntry) -> None:
    """`torch = "^2.1"`: a table whose keys are the packages."""
    version = entry.value.value if isinstance(entry.value, ScalarNode) else ""
    pin = version if re.fullmatch(r"[=<>!~].*", version) else ""
    change = package_advice(entry.key.value + pin, sites.context)
    if change is None:
        return
    also = (
        Text("; add {names}", names=", ".join(name_of(each) for each in change.also))
        if change.also
        else ""
    )
    sites.add(RULE, entry.key.start, entry.key.end, reason=Text.of(change.reason) + also)


def index(sites: Sites, node: ScalarNode) -> None:
    """An index with wheels for the origin's toolkit."""
    if index_change(node.value, sites.context):
        sites.add(RULE, node.start, node.end, reason="an index of builds for the CUDA toolkit")
