"""One file per construct that data can't describe, found by folder.

Each module defines `find(module) -> Iterator[Finding | Pending]`; the rules it reports under, with
their texts and cases, are items of `rules/common/*.yaml`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator

from joymigrate.model import Finding
from joymigrate.rewrite.module import Module, Pending

Find = Callable[[Module], Iterator[Finding | Pending]]


@functools.cache
def all_codemods() -> tuple[Find, ...]:
    """Every codemod of this folder, in the order of file names."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    return tuple(importlib.import_module(f"{__name__}.{name}").find for name in names)
