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
from joymigrate.run.rehearse import deepspeed_home, pyacl, triton_kernels
from joymigrate.run.rehearse.settings import OWN_VARIABLES, read_settings

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
    os.environ["TASK_QUEUE_ENABLE"] = OWN_VARIABLES["TASK_QUEUE_ENABLE"]
    triton_kernels.start()
    deepspeed_home.start()
    pyacl.provide(settings)

    def around(load: Callable[[], None]) -> None:
        from joymigrate.run.rehearse.shim import Shim

        shim = Shim(settings)
        with without_home_warning(), without_cuda():
            load()
        from joymigrate.run.rehearse.install import install

        install(settings, shim)

    attach.around_import(PACKAGE, around, who=WHO)


@contextmanager
def set_for_now(name: str, value: str) -> Iterator[None]:
    """An environment variable with another value."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def without_cuda() -> Iterator[None]:
    """torch as if it was built for the CPU, while torch_npu looks for another accelerator.

    From 2.8 on torch names CUDA when it was built for it, whether there is a GPU or not. Nobody
    runs such a pair on a chip's machine; here it is what the package index gives.
    """
    with set_for_now("TORCH_DEVICE_BACKEND_AUTOLOAD", "0"):  # else torch asks for this package
        import torch

    real = getattr(torch._C, "_get_accelerator", None)
    if real is None:
        yield
        return

    def get_accelerator(*args: bool) -> torch.device:
        found: torch.device = real(*args)
        return torch.device("cpu") if found.type == "cuda" else found

    torch._C._get_accelerator = get_accelerator  # type: ignore[assignment]
    try:
        yield
    finally:
        torch._C._get_accelerator = real


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
