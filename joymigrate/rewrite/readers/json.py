"""JSON and JSONC: settings of training, DeepSpeed, dev containers, launchers."""

from __future__ import annotations

from collections.abc import Iterator

from joymigrate.model import Finding
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.readers import _deepspeed
from joymigrate.rewrite.readers._configuration import TreeWalk
from joymigrate.rewrite.readers._json_tree import tree
from joymigrate.rewrite.readers._migration_map import Sites, worth_reading
from joymigrate.rewrite.readers._tree import Mapping, MappingEntry
from joymigrate.rewrite.source import SourceText

PATTERNS = ("*.json", "*.jsonc", "*.json5", "*.code-workspace")


def read(source: SourceText, context: Context) -> Iterator[Finding]:
    """Findings of one file."""
    sites = Sites.of(source, context)
    if not source.text.strip() or not worth_reading(sites):
        return
    root = tree(source.text)
    _deepspeed.settings(sites, root)
    TreeWalk(sites, lambda entry, name: another(source, entry, name)).node(root)
    yield from sites.ordered()


def another(source: SourceText, entry: MappingEntry, name: str) -> tuple[int, str] | None:
    """One more entry behind this one, laid out as this one is."""
    text = source.text
    if isinstance(entry.value, Mapping):
        line = text.rfind("\n", 0, entry.value.start) + 1
        head = text[line : entry.value.start]
        between = " " if head.strip() else source.newline + head
        return entry.value.end, f",{between}"
    line = text.rfind("\n", 0, entry.key.start) + 1
    head = text[line : entry.key.start]
    between = " " if head.strip() else source.newline + head
    quoted = text[entry.key.start : entry.key.end].replace(entry.key.value, name)
    return entry.value.end, f",{between}{quoted}{text[entry.key.end : entry.value.end]}"
