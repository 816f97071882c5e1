"""TOML: settings, and the packages of pyproject.toml and Pipfile."""

from __future__ import annotations

from collections.abc import Iterator

from joymigrate.model import Finding
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.readers import _projects
from joymigrate.rewrite.readers._configuration import TreeWalk
from joymigrate.rewrite.readers._migration_map import Sites, worth_reading
from joymigrate.rewrite.readers._toml_tree import tree
from joymigrate.rewrite.readers._tree import Mapping, MappingEntry
from joymigrate.rewrite.source import SourceText

PATTERNS = ("*.toml", "Pipfile")


def read(source: SourceText, context: Context) -> Iterator[Finding]:
    """Findings of one file. Sections about packages are read as such, the rest as settings."""
    sites = Sites.of(source, context)
    name = source.path.rpartition("/")[2]
    project = name in ("pyproject.toml", "Pipfile")
    if not project and not worth_reading(sites):
        return
    root = tree(source.text)
    walk = TreeWalk(sites, lambda entry, name: another(source, entry, name))
    for entry in root.entries:
        if not (project and _projects.section(sites, entry)):
            settings(walk, entry)
    yield from sites.ordered()


def settings(walk: TreeWalk, entry: MappingEntry) -> None:
    """A table of settings. Tables of tools are about code, not about devices."""
    if not entry.key.value.startswith(("tool.ruff", "tool.mypy", "tool.black", "tool.isort")):
        walk.entry(entry, set())


def another(source: SourceText, entry: MappingEntry, name: str) -> tuple[int, str] | None:
    """One more line with the same value."""
    text = source.text
    if isinstance(entry.value, Mapping):
        return None
    line = text.rfind("\n", 0, entry.key.start) + 1
    head = text[line : entry.key.start]
    raw = text[entry.key.end : entry.value.end]
    if head.strip():
        return entry.value.end, f", {name}{raw}"
    end = text.find("\n", entry.value.end)
    end = len(text) if end < 0 else end
    end = end - 1 if text[end - 1 : end] == "\r" else end
    return end, f"{source.newline}{head}{name}{raw}"
