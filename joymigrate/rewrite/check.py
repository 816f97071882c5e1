"""The check on the written tree: no value has the origin's word in one statement and the target's
in another, and every name that was written means something.

It reads the tree as it would lie on disk and knows nothing of how the edits were decided. A tree
that fails is not written.
"""

from __future__ import annotations

import builtins
import re
import symtable
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from joymigrate.language import Text
from joymigrate.model import Edit, Finding, Patch
from joymigrate.rewrite.device_tests import is_test
from joymigrate.rewrite.proof import move_offset
from joymigrate.rewrite.solve import (
    Way,
    files_naming,
    is_fact,
    meetings,
    place_of,
    target_words,
)
from joymigrate.rewrite.values.cells import Cell
from joymigrate.rewrite.values.graph import ValueGraph
from joymigrate.rewrite.vocabulary import Vocabulary

APART = (
    "{path}:{line} says `{text}` and {other}:{there} says `{written}`, and both are one value: "
    "{way}"
)
UNBOUND = "{path}:{line} uses `{name}`, which nothing in the file binds"
KNOWN = frozenset((*dir(builtins), "__file__", "__name__", "__doc__", "__path__", "__spec__",
                   "__package__", "__loader__", "__builtins__", "__annotations__"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class TreeFault:
    """Something wrong with a written tree: the file and the offset that an edit wrote."""

    reason: str
    path: str
    start: int


def faults(
    graph: ValueGraph, patches: Mapping[str, Patch], vocabulary: Vocabulary
) -> Iterator[TreeFault]:
    """What is wrong with the tree of `graph`, of which `patches` are the files that changed."""
    written = {path: list(spans_of(patch)) for path, patch in patches.items()}
    targets = target_words(vocabulary)

    def names_target(cell: Cell) -> bool:
        place = place_of(graph, cell)
        text = graph.texts[cell[1]][place.start : place.end] if place is not None else ""
        return bool(targets.search(text)) or text.endswith(("()", "())"))

    def is_written(cell: Cell) -> bool:
        place, source = place_of(graph, cell), graph.load(cell[1])
        if place is None or source is None or not names_target(cell):
            return False
        first, last = source.to_bytes(place.start), source.to_bytes(place.end)
        return any(first < end and start < last for start, end in written.get(cell[1], ()))

    def stood_there(cell: Cell) -> bool:
        return names_target(cell) and not is_written(cell)

    for path in files_naming(graph.texts, vocabulary):
        home = graph.file(path) if not is_test(path) else None  # tests wait by themselves
        for cell, place in list(home.places.items()) if home is not None else ():
            if names_target(cell) or not place.quoted or not is_fact(graph, cell):
                continue
            for other, way, whole in meetings(graph, cell, names_target, stood_there):
                if whole and is_written(other):
                    yield fault(graph, cell, other, way)
    for path, patch in patches.items():
        yield from find_unbound(path, patch)


def fault(graph: ValueGraph, cell: Cell, other: Cell, way: Way) -> TreeFault:
    """The fault of two texts."""
    here, there = place_of(graph, cell), place_of(graph, other)
    assert here is not None  # both are texts of the graph
    assert there is not None
    words: dict[str, object] = {
        "path": cell[1],
        "line": here.line,
        "text": short(graph.texts[cell[1]][here.start : here.end]),
        "other": other[1],
        "there": there.line,
        "written": short(graph.texts[other[1]][there.start : there.end]),
        "way": "; ".join(f"{where}:{at} {how}" for where, at, how in way),
    }
    return TreeFault(Text(APART, **words), other[1], there.start)


def short(text: str) -> str:
    """A text in one line."""
    return " ".join(text.split())[:60]


def spans_of(patch: Patch) -> Iterator[tuple[int, int]]:
    """Bytes of the new content that edits wrote."""
    edits: list[Edit] = list(dict.fromkeys(e for f in patch.findings for e in f.edits))
    for edit in edits:
        start = move_offset(edit.start, edits)
        yield start, start + len(edit.text)


def at_fault(patch: Patch, start: int) -> list[Finding]:
    """Findings of a patch whose edit wrote a byte of the new content."""
    edits: list[Edit] = list(dict.fromkeys(e for f in patch.findings for e in f.edits))
    return [
        each
        for each in patch.findings
        if any(
            (first := move_offset(edit.start, edits)) <= start < first + max(1, len(edit.text))
            for edit in each.edits
        )
    ]


def find_unbound(path: str, patch: Patch) -> Iterator[TreeFault]:
    """Names that the new content of a Python file reads and that it had not to bind before."""
    if not path.endswith((".py", ".pyw")) or patch.after is None:
        return
    after = free_names(patch.after)
    if not after:
        return
    before = free_names(patch.before) if patch.before is not None else set()
    for name in sorted(after - before):
        place = re.search(rb"\b%s\b" % name.encode(), patch.after)
        start = place.start() if place is not None else 0
        if not any(each.rule.startswith("JM") for each in at_fault(patch, start)):
            continue  # a codemod of the project's own, which knows its names
        line = patch.after.count(b"\n", 0, start) + 1
        yield TreeFault(Text(UNBOUND, path=path, line=line, name=name), path, start)


def free_names(data: bytes) -> set[str]:
    """Names that a file reads as global ones and binds nowhere; none where it has `import *`."""
    if b"import *" in data or b"globals()" in data:
        return set()
    try:
        top = symtable.symtable(data, "file", "exec")  # type: ignore[arg-type]
    except (SyntaxError, ValueError, RecursionError):
        return set()
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    used: set[str] = set()
    todo = [top]
    while todo:
        table = todo.pop()
        todo += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_declared_global() and symbol.is_assigned():
                bound.add(symbol.get_name())
            is_global = symbol.is_global() or table is top
            if is_global and symbol.is_referenced():
                used.add(symbol.get_name())
    bound |= {child.get_name() for child in top.get_children()}
    return used - bound - KNOWN
