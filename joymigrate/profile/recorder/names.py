"""Qualified names of modules: as `named_modules` of the model that was called gives them."""

from __future__ import annotations

import weakref
from typing import Any

# Wrappers that put a module of their own around the user's.
WRAPPERS = frozenset(
    {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"}
)
WRAPPING = frozenset(
    {
        "DistributedDataParallel",
        "DataParallel",
        "OptimizedModule",
        "FullyShardedDataParallel",
        "CheckpointWrapper",
    }
)


class RecordedModuleNames:
    """Names of all modules below the roots seen so far. The first root's have no prefix."""

    def __init__(self) -> None:
        self.names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self.roots = 0

    def of(self, module: Any, root: Any) -> str:
        """The name of `module`, which runs below the top-level call of `root`."""
        name = self.names.get(module)
        if name is None:
            self.add(root)
            name = self.names.get(module)
        if (
            name is None
        ):  # not registered below the root: a module kept in a list or made on the fly
            name = self.names[module] = type(module).__name__
        return name

    def add(self, root: Any) -> None:
        """Name everything below a root."""
        if root in self.names and self.names[root] != type(root).__name__:
            names = [(name, module) for name, module in root.named_modules()]
            base = self.names[root]
        else:
            base = "" if self.roots == 0 else type(root).__name__
            self.roots += 1
            names = list(root.named_modules())
        wraps = {name for name, module in names if type(module).__name__ in WRAPPING}
        for name, module in names:
            if module not in self.names:
                own = unwrap_name(name, wraps)
                self.names[module] = f"{base}.{own}".strip(".") if base else own


def unwrap_name(name: str, wraps: set[str]) -> str:
    """The name without the parts that wrappers added."""
    if not wraps:
        return name
    parts, kept = name.split(".") if name else [], []
    for index, part in enumerate(parts):
        if part in WRAPPERS and ".".join(parts[:index]) in wraps:
            continue
        kept.append(part)
    return ".".join(kept)
