"""Mixed precision that a module switches on inside of its own forward, held off in an exact pass.

torch's autocast, and what vendors and older programs derive from it, goes through
`torch.set_autocast_enabled`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def held_off(wanted: Callable[[], bool]) -> Iterator[None]:
    """Leave autocast off where `wanted()` says so; it is asked whenever autocast would begin."""
    owner: Any = torch
    real = owner.set_autocast_enabled

    def switch(*given: Any) -> None:
        *device, enabled = given
        real(*device, enabled and not wanted())

    owner.set_autocast_enabled = switch
    try:
        yield
    finally:
        owner.set_autocast_enabled = real
