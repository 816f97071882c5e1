"""Names of modules: the path in the tree of the outermost module, found when it is called.

A module that is called from a method of a bigger one which is never called itself (`generate`,
`training_step`) belongs to that bigger one. Wrappers of data parallelism and of the compiler have
no part in a name.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from joymigrate.verify.flat_weights import FlatWeight, Place, flat_weights
from joymigrate.verify.graphs import class_name, graph_of
from joymigrate.verify.identity_map import IdentityMap

WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
# Classes that hold the program's own module as `module`, and call it.
HOLDERS = (
    "DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "DeepSpeedEngine",
)  # fmt: skip
DEEPEST = 40  # frames that are looked at


def plain(path: str) -> str:
    """A path without the names that wrappers put into it."""
    parts = path.split(".")
    return ".".join(p for p in parts if p not in WRAPPERS[1:])


def unwrap(module: torch.nn.Module) -> torch.nn.Module:
    """The program's own module below DDP, DataParallel, DeepSpeed and torch.compile."""
    while True:
        kind = type(module).__name__
        if kind in HOLDERS:
            module = module.module  # type: ignore[assignment]
        elif kind == "OptimizedModule":
            module = module._orig_mod  # type: ignore[assignment]
        else:
            return module


class ModuleNames:
    """The outermost modules of a program and the names of everything below them."""

    def __init__(self) -> None:
        self.names: IdentityMap[tuple[str, str]] = IdentityMap()  # module → (root, path)
        self.modules: dict[str, torch.nn.Module] = {}  # by root
        self.graphs: dict[str, dict[str, Any]] = {}  # by place: modules that run as one graph
        self.flat: dict[Place, FlatWeight] = {}  # weights that FSDP1 holds

    def find(self, module: torch.nn.Module) -> tuple[str, str] | None:
        """(root, path) of a module that was seen before."""
        return self.names.get(module)

    def open(self, module: torch.nn.Module) -> tuple[str, str]:
        """(root, path) of a module that is called at top level."""
        inner = unwrap(module)
        known = self.names.get(module) or self.names.get(inner)
        if known is not None and self.modules.get(known[0]) is not None:
            if self.names.get(module) is None:
                self.names.put(module, known)
                self.note_graphs(*known, module)
            return known
        owner = self.owner(inner) or inner
        root = self.label(owner)
        self.modules[root] = owner
        for path, member in owner.named_modules():
            self.names.setdefault(member, (root, plain(path)))
        self.flat |= flat_weights(module)
        found = self.names.setdefault(inner, (root, ""))
        self.names.put(module, found)
        self.note_graphs(*found, module)
        return found

    def note_graphs(self, root: str, start: str, module: torch.nn.Module) -> None:
        """Which modules run as one graph, here and below."""
        for path, member in module.named_modules():
            kind, hidden = graph_of(member)
            if kind and hidden:
                place = ".".join(p for p in (start, plain(path)) if p)
                self.graphs.setdefault(f"{root}:{place}", {"kind": kind, "modules": hidden})

    def refresh(self, root: str) -> None:
        """Name modules that were added since the root was seen."""
        for path, member in self.modules[root].named_modules():
            self.names.setdefault(member, (root, plain(path)))

    def label(self, module: torch.nn.Module) -> str:
        """What the program calls this module: its variable, else its class; unique."""
        name = variable(module) or class_name(module)
        taken = [n for n, m in self.modules.items() if m is not module]
        label, number = name, 2
        while label in taken:
            label, number = f"{name}_{number}", number + 1
        return label

    def owner(self, module: torch.nn.Module) -> torch.nn.Module | None:
        """The outermost module on the stack whose method called this one."""
        frame, found, seen = sys._getframe(2), None, 0
        while frame is not None and seen < DEEPEST:
            holder = frame.f_locals.get("self")
            if isinstance(holder, torch.nn.Module) and holder is not module:
                holder = unwrap(holder)
                if any(member is module for member in holder.modules()):
                    found = holder
            frame, seen = frame.f_back, seen + 1  # type: ignore[assignment]
        return found


def variable(module: torch.nn.Module) -> str | None:
    """The name of the variable, or of an attribute of `self`, that holds a module."""
    frame: Any = sys._getframe(2)
    seen = 0
    while frame is not None and seen < DEEPEST:
        own = not frame.f_globals.get("__name__", "").startswith(("torch.", "joymigrate."))
        for scope in (frame.f_locals, frame.f_globals) if own else ():
            for name, value in list(scope.items()):
                held = isinstance(value, torch.nn.Module) and unwrap(value) is module
                if held and name != "self" and not name.startswith("_"):
                    return str(name)
        holder = frame.f_locals.get("self") if own else None
        if holder is not None and not isinstance(holder, torch.nn.Module):
            for name, value in list(getattr(holder, "__dict__", {}).items()):
                if isinstance(value, torch.nn.Module) and unwrap(value) is module:
                    return str(name)
        frame, seen = frame.f_back, seen + 1
    return None
