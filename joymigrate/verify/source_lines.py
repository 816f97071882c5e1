"""Which line of the program makes a call: the innermost frame that is neither torch's nor ours."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

PACKAGES = Path(torch.__file__).parent.parent  # of this environment: libraries, not the program
OURS = Path(__file__).parent.parent
LIBRARIES = (str(Path(torch.__file__).parent), str(OURS), "<", str(Path(os.__file__).parent))


@lru_cache(maxsize=4096)
def is_inner(file: str) -> bool:
    """Whether code of this file is torch's, ours or made up."""
    return file.startswith(LIBRARIES) and not file.startswith(f"{PACKAGES}{os.sep}transformers")


@lru_cache(maxsize=4096)
def short_path(file: str) -> str:
    """A file as a user calls it: below the working folder, below the packages, or by its name."""
    for base in (os.getcwd(), str(PACKAGES)):
        if file.startswith(f"{base}{os.sep}"):
            return Path(file).relative_to(base).as_posix()
    return Path(file).name


def where() -> str:
    """`file:line` of the program's own code that is at work; empty where there is none."""
    frame: Any = sys._getframe(1)
    while frame is not None and is_inner(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""
