"""YAML: training settings, Kubernetes, Helm, compose, workflows, accelerate, conda."""

from __future__ import annotations

from collections.abc import Iterator

from joymigrate.model import Finding
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.readers import _conda, _deepspeed
from joymigrate.rewrite.readers._configuration import TreeWalk
from joymigrate.rewrite.readers._migration_map import Sites, worth_reading
from joymigrate.rewrite.readers._tree import Mapping, MappingEntry
from joymigrate.rewrite.readers._yaml_tree import trees
from joymigrate.rewrite.source import SourceText

PATTERNS = ("*.yaml", "*.yml", "*.yaml.tmpl", "*.yml.tmpl", "*.yaml.j2", "*.yml.j2", "*.cff")


def read(source: SourceText, context: Context) -> Iterator[Finding]:
    """Findings of every document of one file."""
    sites = Sites.of(source, context)
    conda = _conda.may_be(source.text)
    if not conda and not worth_reading(sites):
        return
    walk = TreeWalk(sites, lambda entry, name: another(source, entry, name))
    for root in trees(source.text):
        if conda and isinstance(root, Mapping) and _conda.environment(sites, root):
            continue
        _deepspeed.settings(sites, root)
        walk.node(root)
    yield from sites.ordered()


def another(source: SourceText, entry: MappingEntry, name: str) -> tuple[int, str] | None:
    """Where one more entry goes, and its text: a line of its own, or more inside the brackets.

    For an item of a list the mapping is the value; the text is then what stands before its copy.
    """
    text = source.text
    value = entry.value
    line = text.rfind("\n", 0, entry.key.start) + 1
    if isinstance(value, Mapping):
        start = value.start
        line = text.rfind("\n", 0, start) + 1
        head = text[line:start]
        if value.flow or head.strip() not in ("-", ""):
            return None
        end = start + len(text[start : value.end].rstrip())
        return end, source.newline + head
    head = text[line : entry.key.start]
    if "\n" in text[entry.key.start : value.end].rstrip():
        return None
    raw = text[entry.key.end : value.end]
    if head.strip():
        inside = text[value.end : value.end + 200].lstrip()[:1]
        return (value.end, f", {name}{raw}") if inside in (",", "}") else None
    end = text.find("\n", value.end)
    end = len(text) if end < 0 else end
    end = end - 1 if text[end - 1 : end] == "\r" else end
    return end, f"{source.newline}{head}{name}{raw}"
