"""Where in the user's program something happened: the nearest frame that is not a library's."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from types import FrameType

PACKAGES = ("torch", "torch_npu")
# Ours that stand between a program and torch.
WATCHERS = ("run.rehearse", "run.door", "profile", "verify")
BACKWARD = "backward pass"  # autograd runs it in threads of its own


@cache
def library_folders() -> tuple[str, ...]:
    """Folders whose frames are never the user's."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in PACKAGES]
    folders = [str(Path(file).parent) for file in files if file]
    house = Path(__file__).parents[2]
    ours = [str(house.joinpath(*name.split("."))) for name in WATCHERS]
    return (*(folder + os.sep for folder in [*folders, *ours]), str(house / "modes.py"))


@cache
def is_users(filename: str) -> bool:
    """Whether a file is the program's: not torch's, not ours, not made at run time."""
    if filename.startswith("<"):
        return False
    if filename.startswith(os.path.join(os.path.dirname(os.__file__), "threading.py")):
        return False
    return not filename.startswith(library_folders())


def call_site(frame: FrameType | None = None) -> str:
    """`file:line` of the nearest user frame, or that there is none. A program that is no file
    (`python -c`, standard input) has its lines in `<string>` or `<stdin>`."""
    frame = frame or sys._getframe(1)
    unnamed = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users(name):
            return f"{name}:{frame.f_lineno}"
        if not unnamed and name.startswith("<") and frame.f_globals.get("__name__") == "__main__":
            unnamed = f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return unnamed or BACKWARD


def program_site() -> str:
    """`file:line` of the nearest frame that is no installed package's either; else as
    `call_site`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_users(name) and "-packages" not in name:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return call_site()
