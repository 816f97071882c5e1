"""Unified diffs of bytes, in the form that `git apply` accepts.

Only a line feed ends a line here: a carriage return, a form feed or a Unicode separator is
content. So CRLF files, files without a final newline and files in any encoding come out right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

CONTEXT = 3  # lines, as git
NEAR = 40  # lines passed at most, old and new together, when looking for the next agreement
SURE = 3  # equal lines that prove an insertion or a removal
PLAIN = re.compile(rb'[^\x00-\x1f"\\\x7f]*')
ESCAPES = {9: b"\\t", 10: b"\\n", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}


def write_unified(path: str, before: bytes | None, after: bytes | None, mode: int = 0o644) -> bytes:
    """The diff of one file; empty when nothing differs.

    `path` is POSIX and relative. `before` None: a new file of permission bits `mode`;
    `after` None: a removed one.
    """
    if before == after:
        return b""
    name = path.encode("utf-8", "surrogateescape")
    old, new = quote_name(b"a/" + name), quote_name(b"b/" + name)
    kind = b"100755" if mode & 0o111 else b"100644"
    head = b"diff --git " + old + b" " + new + b"\n"
    if before is None:
        head += b"new file mode " + kind + b"\n"
        old = b"/dev/null"
    if after is None:
        head += b"deleted file mode " + kind + b"\n"
        new = b"/dev/null"
    body = b"".join(hunks(lines_of(before or b""), lines_of(after or b"")))
    if not body:  # an empty file that appears or goes
        return head
    return head + b"--- " + old + tab(old) + b"\n+++ " + new + tab(new) + b"\n" + body


def lines_of(data: bytes) -> list[bytes]:
    """Lines with their line feeds; the last one may lack it."""
    return re.findall(rb"[^\n]*\n|[^\n]+\Z", data)


def hunks(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[bytes]:
    """The hunks between two lists of lines."""
    for group in group_blocks(find_changed(old, new)):
        start, stop = max(group[0].i1 - CONTEXT, 0), min(group[-1].i2 + CONTEXT, len(old))
        shift = group[0].j1 - group[0].i1
        new_stop = group[-1].j2 + stop - group[-1].i2
        yield b"@@ -%s +%s @@\n" % (span(start, stop), span(start + shift, new_stop))
        at = start
        for block in group:
            yield from mark_lines(b" ", old[at : block.i1])
            yield from mark_lines(b"-", old[block.i1 : block.i2])
            yield from mark_lines(b"+", new[block.j1 : block.j2])
            at = block.i2
        yield from mark_lines(b" ", old[at:stop])


class LineBlock(NamedTuple):
    """Lines `i1:i2` of the old text became lines `j1:j2` of the new one."""

    i1: int
    i2: int
    j1: int
    j2: int


def group_blocks(blocks: Iterable[LineBlock]) -> Iterator[list[LineBlock]]:
    """Blocks whose context touches, together."""
    group: list[LineBlock] = []
    for block in blocks:
        if group and block.i1 - group[-1].i2 > 2 * CONTEXT:
            yield group
            group = []
        group.append(block)
    if group:
        yield group


def find_changed(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[LineBlock]:
    """The blocks that differ, first to last.

    A rewrite changes lines and adds a few, so the texts stay in step; this walks them side by side
    and costs little more than reading them. `difflib` needs minutes where lines repeat often.
    """
    i = j = 0
    while i < len(old) or j < len(new):
        if i < len(old) and j < len(new) and old[i] == new[j]:
            i, j = i + 1, j + 1
            continue
        di, dj = in_step_again(old, new, i, j)
        yield LineBlock(i, i + di, j, j + dj)
        i, j = i + di, j + dj


def in_step_again(old: Sequence[bytes], new: Sequence[bytes], i: int, j: int) -> tuple[int, int]:
    """How many lines to pass on both sides until the texts agree; the fewest within `NEAR`.

    As many lines on both sides need one equal line to follow, other pairs `SURE` ones.
    """
    for total in range(1, NEAR):
        for di in sorted(range(total + 1), key=lambda di: abs(total - 2 * di)):
            dj = total - di
            if agree(old, new, i + di, j + dj, 1 if di == dj else SURE):
                return di, dj
    for far in range(NEAR // 2, min(len(old) - i, len(new) - j)):
        if agree(old, new, i + far, j + far, SURE):
            return far, far
    return len(old) - i, len(new) - j


def agree(old: Sequence[bytes], new: Sequence[bytes], i: int, j: int, count: int) -> bool:
    """Whether `count` lines are equal from `i` and `j` on, or all that are left on both sides."""
    inside = i <= len(old) and j <= len(new)
    return inside and old[i : i + count] == new[j : j + count]


def span(start: int, stop: int) -> bytes:
    """`start,count` as a hunk's head has it; lines count from 1, an empty span names the line
    before it."""
    count = stop - start
    if count == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + (count > 0), count)


def mark_lines(mark: bytes, lines: Sequence[bytes]) -> Iterator[bytes]:
    """Lines with their mark; one without a line feed says so, as git does."""
    for line in lines:
        if line.endswith(b"\n"):
            yield mark + line
        else:
            yield mark + line + b"\n\\ No newline at end of file\n"


def quote_name(name: bytes) -> bytes:
    """A file name as git writes it: in C quotes where it has a control character or a quote."""
    if PLAIN.fullmatch(name):
        return name
    body = b"".join(
        ESCAPES.get(c) or (b"\\%03o" % c if c < 32 or c == 127 else bytes([c])) for c in name
    )
    return b'"' + body + b'"'


def tab(name: bytes) -> bytes:
    """A tab ends a name with spaces, so that a reader knows where it ends."""
    return b"\t" if b" " in name and not name.startswith(b'"') else b""
