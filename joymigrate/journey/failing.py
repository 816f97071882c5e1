"""Why a program that was not migrated yet ends badly: its own fault, or no GPU in this machine."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum
from pathlib import Path

LINES = 60  # of a log's end


class FailureReason(str, Enum):
    """`unclear`: it said nothing that tells."""

    BROKEN = "broken"
    NEEDS_GPU = "needs a GPU"
    UNCLEAR = "unclear"


GPU = re.compile(
    r"cuda|nvidia|nvml|nccl|cudnn|cublas|\bGPUs?\b|libtorch_cuda|\bno accelerator", re.IGNORECASE
)
# Errors that a GPU would not mend.
OWN = re.compile(
    r"^(?:\w+\.)*(ModuleNotFoundError|ImportError|FileNotFoundError|NotADirectoryError|"
    r"PermissionError|SyntaxError|IndentationError|TabError|NameError|UnboundLocalError|KeyError|"
    r"IndexError|TypeError|ZeroDivisionError|UnicodeDecodeError|JSONDecodeError|MemoryError|"
    r"EOFError)\b"
    r"|: error: |: No such file or directory$|: command not found$|: No module named "
    r"|can't open file|: Permission denied$",
    re.MULTILINE,
)
# Python's own lines, and ours: they say nothing about the program.
FRAMES = re.compile(r"^(\s+File \".*|\s*[\^~]+\s*|error: .*|  (at|help): .*|verify: .*)$")
# What torchrun says when a rank failed: the rank said why before.
RANK = re.compile(r"^\[rank\d+\]:\s?", re.MULTILINE)
LAUNCHER = re.compile(r"^[WE]\d{4} .*torch/distributed/(?:elastic|run).*$", re.MULTILINE)
# What torchrun and `accelerate launch` say last when a program that they started has failed.
CHILD_FAILED = re.compile(
    r"^(?:torch[\w.]*\.ChildFailedError: *|subprocess\.CalledProcessError: .*)$", re.MULTILINE
)
FRAME = re.compile(r"^\s*File \"(?P<file>[^\"]+)\", line (?P<line>\d+)", re.MULTILINE)
TRACEBACK = "Traceback (most recent call last):"


def why(log: str, gpu_here: bool) -> tuple[FailureReason, str]:
    """The reason, and the line that says it."""
    log = of_a_rank(log)
    lines = [line for line in log.strip().splitlines()[-LINES:] if not FRAMES.match(line)]
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    if gpu_here:
        return FailureReason.BROKEN, last
    raised = raise_of(lines)
    # A compiled package that lacks a CUDA library raises ImportError, too.
    if GPU.search(last) or (raised and GPU.search(raised)):
        return FailureReason.NEEDS_GPU, last
    if OWN.search(last):
        return FailureReason.BROKEN, last
    return FailureReason.UNCLEAR, last


def of_a_rank(log: str) -> str:
    """The log up to the launcher's own traceback, where a launcher says that a program failed."""
    ends = [found.start() for found in CHILD_FAILED.finditer(log)]
    if not ends:
        return log
    before, _, _ = log[: ends[-1]].rpartition(TRACEBACK)
    said = LAUNCHER.sub("", RANK.sub("", before)).strip()
    return said or log


def raise_of(lines: list[str]) -> str:
    """The source line of the program that raised: the last indented one before the message."""
    for line in reversed(lines):
        if line.startswith("    ") and line.strip():
            return line.strip()
    return ""


def find_exception(
    log: str, project: Path, skipped: Collection[str]
) -> tuple[str, int, str] | None:
    """(file below the project, line, message) of the exception that ended the program: the last
    place in a file of the project. None where the log has no such traceback.

    `skipped` are folders of the project that hold other people's code.
    """
    _, mark, last = of_a_rank(log).rpartition(TRACEBACK)
    if not mark:
        return None
    said = next((line for line in last.splitlines() if line and not line[0].isspace()), "")
    frames = FRAME.finditer(last[: last.index(said)] if said else last)
    for found in reversed(list(frames)):
        file = project / found["file"]
        if file.is_relative_to(project) and file.is_file():
            own = file.relative_to(project)
            if not set(skipped) & set(own.parts):
                return own.as_posix(), int(found["line"]), said.strip()
    return None
