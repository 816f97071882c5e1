"""Waits for torch_npu in a process, and installs the device as soon as it was imported.

Works whichever way torch_npu comes in: by the program's own import, by torch loading its backends,
before torch or after it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout

from joymigrate import attach
from joymigrate.run.rehearse import pyacl, triton_kernels
from joymigrate.run.rehearse.build import RUNTIME
from joymigrate.run.rehearse.settings import read_settings

PACKAGE = "torch_npu"
WHO = "rehearse"
NO_HOME = "ASCEND_HOME_PATH environment variable is not set"


def start() -> None:
    """Wait for torch_npu in this process. Calling it twice changes nothing."""
    if attach.waits(WHO) or PACKAGE in sys.modules:
        return
    settings = read_settings()
    if settings is None:
        return
    # Everything runs at once: an asynchronous queue would race with memory that is read in place.
    os.environ["TASK_QUEUE_ENABLE"] = "0"

    triton_kernels.start()
    pyacl.provide(settings.libraries / RUNTIME)

    def around(load: Callable[[], None]) -> None:
        from joymigrate.run.rehearse.shim import Shim

        shim = Shim(settings)
        with without_home_warning():
            load()
        from joymigrate.run.rehearse.install import install

        install(settings, shim)

    attach.around_import(PACKAGE, around, who=WHO)


@contextmanager
def without_home_warning() -> Iterator[None]:
    """Keep the program's stdout free of what torch_npu prints when no chip software is installed.

    Anything else that is printed while it is imported comes through.
    """
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            yield
    finally:
        lines = said.getvalue().splitlines(keepends=True)
        sys.stdout.write("".join(line for line in lines if NO_HOME not in line))
