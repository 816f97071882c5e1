"""Keeps what a program prints, as far as it has numbers in it: the last net of a verdict."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

MOST_LINES = 20_000
LONGEST = 2_000


class Printing:
    """Lines that went to stdout and stderr, without those that a progress bar writes over."""

    def __init__(self, mine: Callable[[], bool]) -> None:
        self.mine = mine  # whether the process and thread are the recorded ones
        self.lines: list[str] = []
        self.left_out = 0
        self.open: dict[str, str] = {"stdout": "", "stderr": ""}

    def watch(self, undo: list[Callable[[], None]]) -> None:
        """Look at both streams from here on."""
        for name in self.open:
            stream = getattr(sys, name, None)
            if stream is None:
                continue
            try:
                self.watch_stream(name, stream, undo)
            except AttributeError:  # a stream whose methods can't be replaced
                continue

    def watch_stream(self, name: str, stream: Any, undo: list[Callable[[], None]]) -> None:
        """Look at what is written to one stream; the writing itself stays the same."""
        real = stream.write

        def write(text: Any) -> Any:
            made = real(text)
            if isinstance(text, str) and self.mine():
                self.take(name, text)
            return made

        stream.write = write

        def back() -> None:
            if stream.__dict__.get("write") is write:
                del stream.write

        undo.append(back)

    def take(self, name: str, text: str) -> None:
        """Some more text; whole lines are kept."""
        *lines, rest = (self.open[name] + text).split("\n")
        self.open[name] = rest[-LONGEST:]
        for line in lines:
            line = line.rpartition("\r")[2]
            if not any(c.isdigit() for c in line) and "nan" not in line and "inf" not in line:
                continue
            if len(self.lines) >= MOST_LINES:
                self.left_out += 1
            elif not line.startswith("verify: "):
                self.lines.append(line[:LONGEST])

    def to_json(self) -> dict[str, Any]:
        """For `printed.json`."""
        return {"lines": self.lines, "left_out": self.left_out}
