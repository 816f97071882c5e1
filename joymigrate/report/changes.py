"""What a finding's edits look like on lines: hunks for people, regions for SARIF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from joymigrate.model import Edit, Finding
from joymigrate.rewrite.excerpts import Excerpts, notebook_cells
from joymigrate.rewrite.source import NEWLINE, SourceText, apply_edits


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines from `line` on, before and after; an insertion between lines has no `before`."""

    line: int
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A span of text, lines and columns from 1, and the text that takes its place."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


def hunks(finding: Finding, excerpts: Excerpts) -> tuple[Hunk, ...]:
    """The lines that a finding's edits change. Without edits (or their file) there are none.

    In a notebook they are lines of the cell, as the finding's own are.
    """
    source = excerpts.source(finding.path)
    if source is None or not finding.edits:
        return ()
    if finding.cell is not None:
        return cell_hunks(source, finding.edits, finding.cell)
    return tuple(hunk_of(source, group) for group in by_lines(source, finding.edits))


def cell_hunks(source: SourceText, edits: Sequence[Edit], cell: int) -> tuple[Hunk, ...]:
    """What edits of a notebook's file mean for the lines of one cell."""
    written = apply_edits(source.data, list(edits)).decode(source.encoding, "replace")
    before = notebook_cells(source.text).get(cell, ())
    after = notebook_cells(written).get(cell, ())
    steps = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return tuple(
        Hunk(i1 + 1, before[i1:i2], after[j1:j2])
        for kind, i1, i2, j1, j2 in steps
        if kind != "equal"
    )


def by_lines(source: SourceText, edits: Sequence[Edit]) -> list[list[Edit]]:
    """Edits in groups that share a line."""
    groups: list[list[Edit]] = []
    last = -1
    for edit in sorted(edits, key=lambda one: (one.start, one.end)):
        if groups and line_of(source, edit.start) <= last:
            groups[-1].append(edit)
        else:
            groups.append([edit])
        last = line_of(source, edit.end)
    return groups


def hunk_of(source: SourceText, edits: Sequence[Edit]) -> Hunk:
    """One group of edits as lines before and after."""
    first = line_of(source, edits[0].start)
    start = byte_of_line(source, first)
    stop = byte_of_line(source, line_of(source, edits[-1].end) + 1)
    before = source.data[start:stop]
    moved = [Edit(one.start - start, one.end - start, one.text) for one in edits]
    after = apply_edits(before, moved)
    old, new = (lines_of(part.decode(source.encoding, "replace")) for part in (before, after))
    while old and new and old[-1] == new[-1]:
        del old[-1], new[-1]
    while old and new and old[0] == new[0]:
        del old[0], new[0]
        first += 1
    return Hunk(first, tuple(old), tuple(new))


def regions(finding: Finding, excerpts: Excerpts) -> tuple[Region, ...]:
    """A finding's edits as spans of lines and columns of its file."""
    source = excerpts.source(finding.path)
    if source is None:
        return ()
    found = []
    for edit in sorted(finding.edits, key=lambda one: (one.start, one.end)):
        line, column = position(source, edit.start)
        end_line, end_column = position(source, edit.end)
        text = edit.text.decode(source.encoding, "replace")
        found.append(Region(line, column, end_line, end_column, text))
    return tuple(found)


def position(source: SourceText, at: int) -> tuple[int, int]:
    """Line and column of a byte offset in the file."""
    text = source.data[len(source.mark) : max(at, len(source.mark))]
    return source.position(len(text.decode(source.encoding, "replace")))


def line_of(source: SourceText, at: int) -> int:
    """Line of a byte offset in the file."""
    return position(source, at)[0]


def byte_of_line(source: SourceText, line: int) -> int:
    """Byte offset at which a line starts; the file's end behind its last line."""
    if line > len(source.starts):
        return len(source.data)
    return source.to_bytes(source.starts[line - 1])


def lines_of(text: str) -> list[str]:
    """Lines without their endings; an ending at the end opens no further line."""
    lines = NEWLINE.split(text)
    if lines and not lines[-1]:
        lines.pop()
    return lines
