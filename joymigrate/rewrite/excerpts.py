"""The source lines that findings stand on, read again from disk when a report shows them.

A scan doesn't carry the text of its files. A file that changed or went away since the scan gives
empty lines, never an error: the findings stand, their excerpt is missing.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

from joymigrate.model import Finding
from joymigrate.rewrite.source import NEWLINE, SourceText, Unreadable, decode

REMEMBERED = 16  # files; findings come ordered by path, so a few suffice


class Excerpts:
    """Lines below one root. Reading is cached per file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._file = functools.lru_cache(maxsize=REMEMBERED)(self._read)

    def source(self, path: str) -> SourceText | None:
        """A file as bytes and text, which edits are offsets of; None when it can't be read."""
        source, _ = self._file(path)
        return source

    def line(self, finding: Finding) -> str:
        """The line on which the finding starts, without its ending."""
        return self.line_at(finding.path, finding.line, finding.cell)

    def line_at(self, path: str, line: int, cell: int | None = None) -> str:
        """Line `line` (from 1) of a file, or of one cell of a notebook."""
        _, cells = self._file(path)
        lines = cells.get(cell, ())
        return lines[line - 1] if 0 < line <= len(lines) else ""

    def around(self, finding: Finding, context: int = 0, most: int = 6) -> list[tuple[int, str]]:
        """Numbered lines of the finding with `context` lines on both sides, at most `most`."""
        _, cells = self._file(finding.path)
        lines = cells.get(finding.cell, ())
        first = max(1, finding.line - context)
        last = min(len(lines), finding.end_line + context, first + most - 1)
        return [(number, lines[number - 1]) for number in range(first, last + 1)]

    def _read(self, path: str) -> tuple[SourceText | None, dict[int | None, tuple[str, ...]]]:
        try:
            data = (self.root / path).read_bytes()
        except (OSError, ValueError):
            return None, {}
        try:
            source = decode(path, data, python=path.endswith((".py", ".pyi")))
        except Unreadable:
            text = data.decode("utf-8", errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
            return None, {None: tuple(NEWLINE.split(text))}
        lines: dict[int | None, tuple[str, ...]] = {None: tuple(NEWLINE.split(source.text))}
        if path.endswith(".ipynb"):
            lines |= notebook_cells(source.text)
        return source, lines


def notebook_cells(text: str) -> dict[int | None, tuple[str, ...]]:
    """Lines of every cell of a notebook by index; nothing for a broken one."""
    try:
        cells = json.loads(text)["cells"]
        sources = [cell.get("source", "") for cell in cells]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    joined = ["".join(s) if isinstance(s, list) else str(s) for s in sources]
    return {index: tuple(NEWLINE.split(source)) for index, source in enumerate(joined)}
