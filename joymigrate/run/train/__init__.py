"""Training: one job file on a GPU, another accelerator or a CPU, one process or many.

The parts are a library first, for a loop of your own:

    from joymigrate.run.train import Checkpointer, SpikeGuard, TokenCache
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joymigrate.run.train.checkpoint import Checkpointer
    from joymigrate.run.train.guard import SpikeGuard
    from joymigrate.run.train.tokens import TokenCache

__all__ = ["Checkpointer", "SpikeGuard", "TokenCache"]

HOMES = {"Checkpointer": "checkpoint", "SpikeGuard": "guard", "TokenCache": "tokens"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: this package must not import torch."""
    if name in HOMES:
        return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
