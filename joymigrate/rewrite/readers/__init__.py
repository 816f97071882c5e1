"""One file per kind of text that is not Python: what it may hold, and how it is moved.

A reader is a module of this folder with `PATTERNS` (globs on the file's name, or on its path where
they contain a slash) and `read(source, context)`, which yields findings. Readers look for their
own words first, so `read` may be called on every file of their kind. Where several patterns fit,
the most specific one wins: a name without a wildcard, then the longest pattern.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

from joymigrate.model import Finding
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.source import SourceText

SHEBANG = re.compile(rb"#![^\r\n]*?\b(?P<program>(?:ba|da|k|z)?sh|python[\d.]*)\b")


class FileReader(Protocol):
    """What every module of this folder offers."""

    PATTERNS: tuple[str, ...]
    __name__: str

    def read(self, source: SourceText, context: Context) -> Iterator[Finding]:
        """Findings of one file, in order of position."""


@functools.cache
def readers() -> dict[str, FileReader]:
    """Every reader by name, from the files of this folder."""
    names = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if p.stem[0] != "_")
    return {name: cast(FileReader, importlib.import_module(f"{__name__}.{name}")) for name in names}


@functools.cache
def patterns() -> tuple[tuple[re.Pattern[str], bool, str], ...]:
    """Every pattern as (expression, matches the whole path, reader), most specific first."""
    found = [(pattern, name) for name, reader in readers().items() for pattern in reader.PATTERNS]
    found.sort(key=lambda item: ("*" in item[0], -len(item[0]), item[0]))
    return tuple(
        (re.compile(fnmatch.translate(pattern.lower())), "/" in pattern, name)
        for pattern, name in found
    )


@functools.lru_cache(maxsize=65536)
def kind_of_name(name: str, folder: str = "") -> str | None:
    """The reader's name for a file name (in `folder`, POSIX), or None."""
    lower = name.lower()
    path = f"{folder.lower()}/{lower}"
    for expression, whole, reader in patterns():
        if expression.match(path if whole else lower):
            return reader
    return None


def kind_of_head(head: bytes) -> str | None:
    """`shell` or `python` for a file that begins with such a `#!` line, else None."""
    match = SHEBANG.match(head)
    if match is None:
        return None
    return "python" if match["program"].startswith(b"python") else "shell"
