"""Unified diffs of bytes, in the form that `git apply` accepts.

Only a line feed ends a line here: a carriage return, a form feed or a Unicode separator is
content. So CRLF files, files without a final newline and files in any encoding come out right.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

CONTEXT = 3  # lines, as git
PLAIN = re.compile(rb'[^\x00-\x1f"\\\x7f]*')
ESCAPES = {9: b"\\t", 10: b"\\n", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}


def unified(path: str, before: bytes | None, after: bytes | None, mode: int = 0o644) -> bytes:
    """The diff of one file; empty when nothing differs.

    `path` is POSIX and relative. `before` None: a new file of permission bits `mode`;
    `after` None: a removed one.
    """
    if before == after:
        return b""
    name = path.encode("utf-8", "surrogateescape")
    old, new = quoted(b"a/" + name), quoted(b"b/" + name)
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
    for group in difflib.SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT):
        first, last = group[0], group[-1]
        yield b"@@ -%s +%s @@\n" % (
            span(first[1], last[2]),
            span(first[3], last[4]),
        )
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from marked(b" ", old[i1:i2])
                continue
            yield from marked(b"-", old[i1:i2])
            yield from marked(b"+", new[j1:j2])


def span(start: int, stop: int) -> bytes:
    """`start,count` as a hunk's head has it; lines count from 1, an empty span names the line
    before it."""
    count = stop - start
    if count == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + (count > 0), count)


def marked(mark: bytes, lines: Sequence[bytes]) -> Iterator[bytes]:
    """Lines with their mark; one without a line feed says so, as git does."""
    for line in lines:
        if line.endswith(b"\n"):
            yield mark + line
        else:
            yield mark + line + b"\n\\ No newline at end of file\n"


def quoted(name: bytes) -> bytes:
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
