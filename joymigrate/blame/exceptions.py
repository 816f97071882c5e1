"""Exceptions with their frames, as a process wrote them down or as a log prints them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

TRACEBACK = re.compile(
    r"^.*?(?P<original>Original )?Traceback \(most recent call last\):\s*$", re.MULTILINE
)
FRAME = re.compile(r"^ *File \"(?P<file>[^\"]+)\", line (?P<line>\d+)(?:,? in (?P<function>.+))?$")
FATAL = re.compile(r"^Fatal Python error: (?P<what>.*)$", re.MULTILINE)
CAUSED = "The above exception was the direct cause of the following exception"
HANDLING = "During handling of the above exception, another exception occurred"
NESTED = ("Original Traceback (most recent call last):", "terminated with the following error:")
SAID = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<message>.*)|:?\s*)$")
SYNTAX = re.compile(
    r"^ *File \"(?P<file>[^\"]+)\", line (?P<line>\d+)\n(?P<text>.*)\n(?:[\s~^]*\n)?"
    r"(?P<kind>SyntaxError|IndentationError|TabError): (?P<message>.*)$",
    re.MULTILINE,
)
MARKS = re.compile(r"^[\s~^]+$")
RANK = re.compile(r"^\[[\w.]*rank(?P<rank>\d+)\]:\s?")  # torchrun marks the lines of its ranks
LAUNCHER_LINE = re.compile(r"^[WEI]\d{4} .*torch/distributed/(?:elastic|run|launcher).*$")
FAILED_CHILD = re.compile(
    r"(?:^|\.)(?:ChildFailedError|ProcessRaisedException|ProcessExitedException)$"
)
# They raise CalledProcessError, or end with the code of what they started.
LAUNCHER_FILES = ("accelerate/commands/launch.py", "deepspeed/launcher/")
EXITS = ("__exit__", "__aexit__")
FATAL_ERROR = "Fatal Python error"  # a `kind` of ours: a process that died in native code
MOST_SAID = 2000  # characters of a message
MOST_LINES = 12  # lines of it


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a traceback: file as it was named, line from 1, the source of that line."""

    file: str
    line: int
    function: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception, its outermost frame first. `cause` of one that stands behind another in a
    chain: that one was raised because of it, not by something else while it was handled."""

    kind: str
    message: str
    frames: tuple[Frame, ...] = ()
    cause: bool = True

    @property
    def name(self) -> str:
        """The exception's name without its module."""
        return self.kind.rpartition(".")[2]

    @property
    def said(self) -> str:
        """Its last line in a traceback."""
        return f"{self.name}: {self.message}" if self.message else self.name


def from_document(chain: Sequence[Mapping[str, Any]]) -> tuple[Raised, ...]:
    """The exceptions that a process wrote down (`watch.py`), the last one first."""
    found = [
        Raised(
            one["kind"],
            one["message"][:MOST_SAID],
            tuple(Frame(*frame) for frame in one["frames"]),
            bool(one["cause"]),
        )
        for one in chain
    ]
    if found and any(mark in found[0].message for mark in NESTED):
        return from_log(found[0].message) or tuple(found)  # a worker's, quoted by its parent
    return of_one_cause(found)


def from_log(log: str) -> tuple[Raised, ...]:
    """The exceptions that ended a program by what it printed, the last one first; empty where
    there is none. A launcher's own exception gives way to that of the program it started."""
    text = of_first_rank(log)
    fatal = FATAL.search(text)
    if fatal:
        return (from_fatal(fatal["what"], text[fatal.end() :]),)
    headers = list(TRACEBACK.finditer(text))
    if not headers:
        return from_syntax(text)
    ends = [header.start() for header in headers[1:]] + [len(text)]
    blocks = [
        (text[header.end() : end], header["original"] is not None)
        for header, end in zip(headers, ends, strict=True)
    ]
    read = [read_block(body) for body, _ in blocks]
    last = len(blocks) - 1
    while last > 0 and (read[last] is None or is_launcher(read[last])):
        last -= 1
    chain: list[Raised] = []
    for place in range(last, -1, -1):
        one, before = read[place], blocks[place - 1][0] if place else ""
        if one is None:
            break
        chain.append(one)
        handling = HANDLING in before
        if blocks[place][1] or not (CAUSED in before or handling):
            break
        earlier = read[place - 1]
        if earlier is not None and handling:
            read[place - 1] = replace(earlier, cause=in_its_handler(one, earlier))
    return of_one_cause(chain)


def of_one_cause(chain: Sequence[Raised]) -> tuple[Raised, ...]:
    """The exceptions up to the first that was dealt with before the next one came. One that the
    end of a `with` raised over another is left: what broke the block came first."""
    while len(chain) > 1 and over_a_block(chain[0], chain[1]):
        chain = [replace(chain[1], cause=True), *chain[2:]]
    found: list[Raised] = []
    for one in chain:
        if found and not one.cause:
            break
        found.append(one)
    return tuple(found)


def in_its_handler(later: Raised, earlier: Raised) -> bool:
    """Whether `later` was raised by the function that was handling `earlier`, not by something
    that this function called."""
    if not later.frames or not earlier.frames:
        return False
    raised, handled = later.frames[-1], earlier.frames[0]
    return (raised.file, raised.function) == (handled.file, handled.function)


def over_a_block(later: Raised, earlier: Raised) -> bool:
    """Whether `later` was raised as a `with` was left through which `earlier` came."""
    passed = {(frame.file, frame.function) for frame in earlier.frames}
    return any(
        inner.function in EXITS and (outer.file, outer.function) in passed
        for outer, inner in pairwise(later.frames)
    )


def of_first_rank(log: str) -> str:
    """The lines of the rank that failed first, where they are marked; without a launcher's."""
    lines = [line for line in log.splitlines() if not LAUNCHER_LINE.match(line)]
    ranks = [(found["rank"], line[found.end() :]) for line in lines if (found := RANK.match(line))]
    first = next((rank for rank, line in ranks if TRACEBACK.match(line)), None)
    if first is None:
        return "\n".join(lines)
    return "\n".join(line for rank, line in ranks if rank == first)


def read_block(body: str) -> Raised | None:
    """The exception of one traceback: what follows its header."""
    frames: list[Frame] = []
    lines = body.splitlines()
    for number, line in enumerate(lines):
        found = FRAME.match(line)
        if found:
            frames.append(Frame(found["file"], int(found["line"]), found["function"] or ""))
        elif frames and line.startswith("    ") and not MARKS.match(line):
            if not frames[-1].text:
                frames[-1] = replace(frames[-1], text=line.strip())
        elif line and not line[0].isspace() and (said := SAID.match(line)):
            message = [said["message"] or "", *message_rest(lines[number + 1 :])]
            text = "\n".join(message).strip()[:MOST_SAID]
            return Raised(said["kind"], text, tuple(frames))
    return None


def message_rest(lines: Sequence[str]) -> list[str]:
    """Further lines of a message, up to an empty one."""
    found: list[str] = []
    for line in lines[:MOST_LINES]:
        if not line.strip() or "ERR99999" in line or "Traceback" in line:
            break  # ERR99999 is what the vendor's package says at the end of any error
        found.append(line)
    return found


def from_syntax(text: str) -> tuple[Raised, ...]:
    """A file that Python could not read is named without a traceback."""
    found = SYNTAX.search(text)
    if found is None:
        return ()
    frame = Frame(found["file"], int(found["line"]), "", found["text"].strip())
    return (Raised(found["kind"], found["message"], (frame,)),)


def from_fatal(what: str, text: str) -> Raised:
    """What Python's own fault handler writes of the thread that died; its innermost frame comes
    first there."""
    frames: list[Frame] = []
    for line in text.splitlines():
        found = FRAME.match(line)
        if found:
            frames.append(Frame(found["file"], int(found["line"]), found["function"] or ""))
        elif frames:
            break
    return Raised(FATAL_ERROR, what.strip(), tuple(reversed(frames)))


def is_launcher(one: Raised | None) -> bool:
    """Whether a launcher raised this because a program that it started has failed."""
    if one is None:
        return False
    if FAILED_CHILD.search(one.kind):
        return True
    files = [frame.file for frame in one.frames]
    return one.name in ("CalledProcessError", "SystemExit") and any(
        part in file for file in files for part in LAUNCHER_FILES
    )
