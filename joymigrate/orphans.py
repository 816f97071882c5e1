"""Child processes that end with their parent, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

PARENT_DIES = 1  # PR_SET_PDEATHSIG of linux/prctl.h


def end_with(parent: int) -> Callable[[], None] | None:
    """What a new process does first so that it ends (SIGTERM) when `parent` is killed; Linux only.

    The C library is looked up here: between fork and exec little is allowed.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(PARENT_DIES, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it was killed meanwhile
            os._exit(128 + signal.SIGTERM)

    return ask
