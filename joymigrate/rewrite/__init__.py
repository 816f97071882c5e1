"""Source → findings → patch: what keeps a program on one vendor's devices, and the way off.

`scan` and `patches` are loaded when first used: the runtime switch lives in this package too and
must start in milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joymigrate.rewrite.discover import Exclusion
    from joymigrate.rewrite.patch import patches
    from joymigrate.rewrite.project import scan

__all__ = ["Exclusion", "patches", "scan"]


def __getattr__(name: str) -> Any:
    # No module here may be called like one of these: importing it would put it in their place.
    from importlib import import_module

    homes = {
        "Exclusion": "joymigrate.rewrite.discover",
        "patches": "joymigrate.rewrite.patch",
        "scan": "joymigrate.rewrite.project",
    }
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(homes[name]), name)
    globals()[name] = found
    return found
