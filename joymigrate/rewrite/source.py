"""One file as bytes and as text, with positions that lead from one to the other and back."""

from __future__ import annotations

import bisect
import codecs
import io
import itertools
import operator
import re
import tokenize
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from joymigrate.language import Text
from joymigrate.model import Edit, Finding, Rule, Tier

# A character is the same bytes wherever it stands: lines can be counted one by one.
STATELESS = ("utf-8", "ascii", "latin-1", "iso-8859-1", "cp1252", "gbk", "shift_jis", "euc_kr")
NEWLINE = re.compile(r"\r\n|\n|\r")


class Unreadable(Exception):
    """The file can't be used as text. `line` and `column` count from 1."""

    def __init__(self, reason: str, line: int = 1, column: int = 1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line
        self.column = column


@dataclass(slots=True)
class SourceText:
    """Text of one file. Offsets into `text` are code points; edits leave as bytes of the file.

    `path` is POSIX and relative to the scan's root. `text` has no byte order mark; `encoding` is
    what the file says (UTF-8 unless a Python coding cookie says otherwise).
    """

    path: str
    data: bytes
    text: str
    encoding: str = "utf-8"
    mark: bytes = b""
    _starts: list[int] = field(default_factory=list)
    _byte_starts: list[int] = field(default_factory=list)  # the same in `data`

    @property
    def starts(self) -> list[int]:
        """Offset in `text` of the first character of every line."""
        if not self._starts:
            if "\r" in self.text:
                self._starts = [0, *(match.end() for match in NEWLINE.finditer(self.text))]
            else:  # several times faster
                lengths = itertools.accumulate(map(len, self.text.split("\n")[:-1]))
                self._starts = [0, *map(operator.add, lengths, itertools.count(1))]
        return self._starts

    @property
    def newline(self) -> str:
        """The line ending that the file uses first, `\\n` where it has none."""
        match = NEWLINE.search(self.text)
        return match.group() if match else "\n"

    def line_text(self, line: int) -> str:
        """Line `line` (from 1) without its ending."""
        start = self.starts[line - 1]
        end = self.starts[line] if line < len(self.starts) else len(self.text)
        return self.text[start:end].rstrip("\r\n")

    def offset(self, line: int, utf8_column: int) -> int:
        """Offset in `text` of an `ast` position: line from 1, column in UTF-8 bytes from 0."""
        start = self.starts[line - 1]
        if self.text.isascii():
            return start + utf8_column
        end = self.starts[line] if line < len(self.starts) else len(self.text)
        written = self.text[start:end]
        if written.isascii():
            return start + utf8_column
        head = written.encode("utf-8")[:utf8_column]
        return start + len(head.decode("utf-8", errors="ignore"))

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1, of an offset in `text`."""
        line = bisect.bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1

    def to_bytes(self, offset: int) -> int:
        """Offset in `data` of an offset in `text`."""
        if self.text.isascii():
            return len(self.mark) + offset
        if self.encoding not in STATELESS:
            return len(self.mark) + len(self.text[:offset].encode(self.encoding))
        if not self._byte_starts:
            lines = (self.text[i:j] for i, j in itertools.pairwise(self.starts))
            lengths = (len(line.encode(self.encoding)) for line in lines)
            self._byte_starts = list(itertools.accumulate(lengths, initial=len(self.mark)))
        line = bisect.bisect_right(self.starts, offset) - 1
        inside = self.text[self.starts[line] : offset]
        return self._byte_starts[line] + len(inside.encode(self.encoding))

    def edit(self, start: int, end: int, text: str) -> Edit:
        """An edit of the file's bytes from offsets in `text`.

        Raises `UnicodeEncodeError` when `text` can't be written in the file's encoding.
        """
        return Edit(self.to_bytes(start), self.to_bytes(end), text.encode(self.encoding))

    def finding(
        self,
        rule: Rule,
        start: int,
        end: int,
        *,
        after: str | None = None,
        reason: str | None = None,
        tier: Tier | None = None,
        message: str | None = None,
        edits: tuple[Edit, ...] | None = None,
        needs: str | None = None,
    ) -> Finding:
        """A finding over `text[start:end]`; with `after`, that span is replaced by it.

        A report never carries edits. `edits` overrides the single replacement, for sites that
        change in several places at once.
        """
        tier = tier or rule.tier
        line, column = self.position(start)
        end_line, end_column = self.position(end)
        before = self.text[start:end]
        if tier is Tier.REPORT:
            after, edits, needs = None, (), None
        elif edits is None:
            edits = (self.edit(start, end, after),) if after is not None else ()
        return Finding(
            rule=rule.id,
            name=rule.name,
            tier=tier,
            path=self.path,
            line=line,
            column=column,
            end_line=end_line,
            end_column=end_column,
            message=Text.of(message or rule.message).filled(before=short(before)),
            before=before,
            after=after,
            reason=reason,
            edits=edits,
            area=rule.area,
            weight=rule.weight,
            needs=needs,
        )


def short(text: str) -> str:
    """Source text in one line of a message."""
    found = " ".join(text.split())
    return found if len(found) <= 60 else found[:59] + "…"


def decode(path: str, data: bytes, *, python: bool) -> SourceText:
    """Read bytes as text without losing one: decoding and encoding again gives the same bytes.

    Raises `Unreadable` for binary content, a wrong or unknown encoding, and text that would not
    survive the round trip.
    """
    if b"\0" in data[:8192]:
        raise Unreadable("binary content (a null byte)")
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    body = data[len(mark) :]
    encoding = "utf-8"
    if python:
        encoding = cookie(data)
    try:
        text = body.decode(encoding)
        survives = encoding == "utf-8" or text.encode(encoding) == body
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        bad = body[error.start : error.start + 1].hex()
        raise Unreadable(
            Text("not valid {encoding}: byte 0x{bad}", encoding=encoding, bad=bad), line, column
        ) from None
    except (LookupError, UnicodeEncodeError):
        raise Unreadable(
            Text("unknown or one-way encoding '{encoding}'", encoding=encoding)
        ) from None
    if not survives:
        raise Unreadable(
            Text("text in '{encoding}' does not survive decoding and encoding", encoding=encoding)
        )
    return SourceText(path, data, text, encoding, mark)


def cookie(data: bytes) -> str:
    """The encoding that a Python file's first two lines declare, in Python's spelling."""
    try:
        found, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        raise Unreadable(str(error)) from None
    return "utf-8" if found in ("utf-8-sig", "utf-8") else found


def apply_edits(data: bytes, edits: list[Edit]) -> bytes:
    """`data` with all edits made; everything outside their spans stays as it is.

    Insertions at one place keep their order. Overlapping spans are a bug and raise `ValueError`.
    """
    pieces: list[bytes] = []
    at = 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        if edit.start < at:
            raise ValueError(f"edits overlap at byte {edit.start}")
        pieces += (data[at : edit.start], edit.text)
        at = edit.end
    pieces.append(data[at:])
    return b"".join(pieces)


def stands_alone(name: str, text: str) -> bool:
    """Whether a text holds a word that is no part of a longer one."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        if not inside_word(text[at - 1 : at]) and not inside_word(text[end : end + 1]):
            return True
        at = text.find(name, at + 1)
    return False


def inside_word(character: str) -> bool:
    """Whether a character is a part of a word; every letter beyond ASCII counts as one."""
    return character == "_" or character.isalnum() or character > "\x7f"


def module_name(path: str) -> str:
    """The last name of the module that a file is."""
    place = PurePosixPath(path)
    return place.parent.name if place.stem == "__init__" else place.stem


def read_text(path: Path) -> str:
    """Text of a file for word searches; undecodable bytes don't matter here."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
