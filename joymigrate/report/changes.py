"""What a finding's edits look like on lines: hunks for people, regions for SARIF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from joymigrate.model import Edit, Finding
from joymigrate.rewrite.excerpts import Excerpts
from joymigrate.rewrite.source import NEWLINE, Source, apply_edits


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
    """The lines that a finding's edits change. Without edits (or their file) there are none."""
    source = excerpts.source_of(finding)
    if source is None or not finding.edits:
        return ()
    return tuple(hunk_of(source, group) for group in by_lines(source, finding.edits))


def by_lines(source: Source, edits: Sequence[Edit]) -> list[list[Edit]]:
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


def hunk_of(source: Source, edits: Sequence[Edit]) -> Hunk:
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
    """A finding's edits as spans of lines and columns."""
    source = excerpts.source_of(finding)
    if source is None:
        return ()
    found = []
    for edit in sorted(finding.edits, key=lambda one: (one.start, one.end)):
        line, column = position(source, edit.start)
        end_line, end_column = position(source, edit.end)
        text = edit.text.decode(source.encoding, "replace")
        found.append(Region(line, column, end_line, end_column, text))
    return tuple(found)


def position(source: Source, at: int) -> tuple[int, int]:
    """Line and column of a byte offset in the file."""
    text = source.data[len(source.mark) : max(at, len(source.mark))]
    return source.position(len(text.decode(source.encoding, "replace")))


def line_of(source: Source, at: int) -> int:
    """Line of a byte offset in the file."""
    return position(source, at)[0]


def byte_of_line(source: Source, line: int) -> int:
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
