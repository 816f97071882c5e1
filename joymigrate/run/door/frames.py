"""Whose line of code asks: torch's own Python, joymigrate's, or the program with its libraries."""

from __future__ import annotations

import os
import sys
from enum import Enum
from functools import cache
from types import FrameType

from joymigrate.blame.program import HOUSE, STANDARD, package_of


class DoorFrameOwner(Enum):
    """Whose a file is."""

    PROGRAM = "program"
    TORCH = "torch"
    OURS = "ours"


@cache
def torch_folders() -> tuple[str, ...]:
    """The folder of torch."""
    file = getattr(sys.modules.get("torch"), "__file__", None)
    return (os.path.dirname(file) + os.sep,) if file else ()


@cache
def owner_of(file: str) -> DoorFrameOwner:
    """Whose a file is; what is made at run time counts as the program's."""
    if file.startswith(HOUSE):
        return DoorFrameOwner.OURS
    return DoorFrameOwner.TORCH if file.startswith(torch_folders()) else DoorFrameOwner.PROGRAM


def asker(depth: int = 2) -> DoorFrameOwner:
    """Whose line called the function that calls this one."""
    return owner_of(sys._getframe(depth).f_code.co_filename)


def in_import_of_package(frame: FrameType | None) -> bool:
    """Whether a frame belongs to an installed package's own lines that run as it is imported."""
    package = package_of(frame.f_code.co_filename) if frame else ""
    while frame is not None and package and package_of(frame.f_code.co_filename) == package:
        if frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


def line_of_program() -> str:
    """`file:line` of the nearest line of the program: its own files before those of its libraries
    and before text that it runs.

    `?` where there is none, as in a thread of autograd.
    """
    frame: FrameType | None = sys._getframe(1)
    library = "?"
    while frame is not None:
        file = frame.f_code.co_filename
        if owner_of(file) is DoorFrameOwner.PROGRAM and not file.startswith("<frozen"):
            at = f"{file}:{frame.f_lineno}"
            if not package_of(file) and not file.startswith(("<", *STANDARD)):
                return at
            library = at if library == "?" else library
        frame = frame.f_back
    return library
