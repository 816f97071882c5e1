"""Whose a file is: the program's, a package's, Python's own, or ours."""

from __future__ import annotations

import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path, PurePath

HOUSE = str(Path(__file__).parents[1])
FOR_TORCH = f"{HOUSE}/run/door/refusals.py"  # raises what torch would
FOR_PROGRAM = f"{HOUSE}/device.py"  # calls what the rewritten program asks for
INSTALLED = ("site-packages", "dist-packages")
HANDED_ON = re.compile(r"\((?:\w+, )*\*args|\b(?:call_boxed|redispatch)\(")  # a line of ours
STANDARD = tuple(
    {path for name in ("stdlib", "platstdlib") if (path := sysconfig.get_path(name)) is not None}
)


@dataclass(frozen=True, slots=True)
class Program:
    """A program below a folder; `foreign` are names of folders that hold other people's code."""

    project: Path
    foreign: tuple[str, ...] = ()

    def holds(self, file: str) -> bool:
        """Whether a file that a frame names is the program's own. One outside of the project is,
        too, unless it is installed: programs import from beside them."""
        if file.startswith(("<", HOUSE)) or package_of(file):
            return False
        path = self.project / file
        if path.is_relative_to(self.project):
            return not set(self.foreign) & set(path.relative_to(self.project).parts)
        return not str(path).startswith(STANDARD) and ".py" in path.suffix

    def name(self, file: str) -> str:
        """A file as the project names it."""
        path = self.project / file
        if path.is_relative_to(self.project):
            return path.relative_to(self.project).as_posix()
        return file


def package_of(file: str) -> str:
    """The installed package that a file belongs to: `accelerate`; empty where it is none."""
    parts = PurePath(file).parts
    for place, part in enumerate(parts[:-1]):
        if part in INSTALLED:
            return parts[place + 1].removesuffix(".py")
    return ""


def is_ours(file: str) -> bool:
    """Whether a file is joymigrate's, and does not speak for torch."""
    return file.startswith(HOUSE) and file != FOR_TORCH


def is_fault(file: str, text: str) -> bool:
    """Whether what a line raised is a fault of joymigrate's: a line of ours that does not hand on
    what the program called."""
    return is_ours(file) and HANDED_ON.search(text) is None
