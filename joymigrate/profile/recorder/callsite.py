"""Where in the user's program an operator was called: the nearest frame that is no library's."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import CodeType, FrameType

OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
INSTALLED = tuple({sysconfig.get_paths()[key] + os.sep for key in ("purelib", "platlib")})


def library_folders() -> tuple[str, ...]:
    """Folders whose frames are never the user's: torch, device packages, ours."""
    torch = sys.modules.get("torch")
    folders = [os.path.dirname(str(torch.__file__)) + os.sep] if torch is not None else []
    # A device's own package is called torch_<device>; torchvision and the like are users of torch.
    folders += [folder + "torch_" for folder in INSTALLED]
    folders += [folder + "typing_extensions" for folder in INSTALLED]  # decorators of torch
    return (*folders, OURS)


class CallSites:
    """`file:line` of the nearest user frame; asks each code object once."""

    def __init__(self) -> None:
        self.folders = library_folders()
        self.users: dict[CodeType, str | None] = {}
        self.cwd = os.getcwd() + os.sep

    def here(self, frame: FrameType | None) -> str | None:
        """The call site above `frame`; None when only libraries are on the stack."""
        users = self.users
        while frame is not None:
            code = frame.f_code
            name = users.get(code, "")
            if name == "":
                name = users[code] = self.file(code.co_filename)
            if name is not None:
                return f"{name}:{frame.f_lineno}"
            frame = frame.f_back
        return None

    def file(self, filename: str) -> str | None:
        """How a file is shown: relative below the working folder; None for a library's."""
        if filename.startswith("<"):
            return None
        full = os.path.abspath(filename)
        if full.startswith(self.folders):
            return None
        if full.startswith(STANDARD) and not full.startswith(INSTALLED):
            return None
        return full[len(self.cwd) :] if full.startswith(self.cwd) else full
