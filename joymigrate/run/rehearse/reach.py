"""Which of the named lines of a program run, in every process of it.

`JOYMIGRATE_REACH` names a folder with `lines.json`: by file, each line with the number of what it
belongs to. A number is noted when one of its lines runs for the first time, at once, so that a
process that is killed loses nothing. A program that sets a trace function of its own is not seen
from there on.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from joymigrate.files import replace_file

ENVIRONMENT = "JOYMIGRATE_REACH"
LINES = "lines.json"
NOTES = "reached-*.txt"


def ask(folder: Path, lines: Mapping[str, Mapping[int, int]]) -> None:
    """Prepare a folder: `lines` are, by absolute path, line numbers with what they belong to."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(NOTES):
        old.unlink()
    replace_file(folder / LINES, json.dumps(lines).encode())


def read_reached(folder: Path) -> set[int]:
    """The numbers that some process noted."""
    found: set[int] = set()
    for path in folder.glob(NOTES):
        found.update(int(word) for word in path.read_text(encoding="ascii").split())
    return found


def start() -> None:
    """Watch this process where the environment asks for it. Called before the program's start."""
    folder = Path(os.environ.get(ENVIRONMENT, ""))
    try:
        asked = json.loads((folder / LINES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # who asked is gone
    Reach(folder, {file: {int(k): v for k, v in rows.items()} for file, rows in asked.items()})


class Reach:
    """The trace function of one process; it looks into functions that hold a named line only."""

    def __init__(self, folder: Path, lines: Mapping[str, Mapping[int, int]]) -> None:
        self.folder = folder
        self.lines = lines
        self.left = {number for rows in lines.values() for number in rows.values()}
        self.files: dict[str, Mapping[int, int]] = {}  # by the name that code objects have
        self.wanted: dict[CodeType, frozenset[int]] = {}
        threading.settrace(self.call)
        sys.settrace(self.call)

    def call(self, frame: FrameType, event: str, arg: Any) -> Any:
        """A function begins: is there a line in it that was not reached yet?"""
        code = frame.f_code
        numbers = self.wanted.get(code)
        if numbers is None:
            numbers = self.wanted[code] = self.find(code)
        if not numbers or not numbers & self.left:
            return None
        return self.line

    def find(self, code: CodeType) -> frozenset[int]:
        """What the lines of a code object belong to."""
        name = code.co_filename
        rows = self.files.get(name)
        if rows is None:
            rows = self.files[name] = self.lines.get(real_path(name), {})
        return frozenset(number for number in map(rows.get, lines_of(code)) if number is not None)

    def line(self, frame: FrameType, event: str, arg: Any) -> Any:
        """A line is about to run."""
        number = self.files[frame.f_code.co_filename].get(frame.f_lineno)
        if number is not None and number in self.left:
            self.note(number)
        return self.line

    def note(self, number: int) -> None:
        """Keep a number; when nothing is left to be reached, the watch ends."""
        self.left.discard(number)
        # What can't be noted counts as not run; an error here would be one of the program's.
        with (
            contextlib.suppress(OSError),
            open(self.folder / f"reached-{os.getpid()}.txt", "a", encoding="ascii") as file,
        ):
            file.write(f"{number}\n")
        if not self.left:
            threading.settrace(None)
            sys.settrace(None)


def real_path(name: str) -> str:
    """A code object's file without links; its name where the working folder is gone, or no path."""
    try:
        return os.path.realpath(name)
    except (OSError, ValueError):
        return name


def lines_of(code: CodeType) -> Iterable[int]:
    """The lines that a code object has instructions of."""
    return {line for _, _, line in code.co_lines() if line is not None}
