"""What a program reads from torch's profiler and the target's has not: `key_averages()`.

Files where the result is passed on to another file are not followed.
"""

from __future__ import annotations

import ast

from joymigrate.rewrite.module import Module

PROFILE = "torch.profiler.profile"


def lacking(module: Module, dotted: str) -> bool:
    """Whether a name of the profiler is one that the target's package lacks."""
    advice = module.vocabulary.moved(dotted) if dotted.startswith("torch.profiler.") else None
    return advice is not None and advice.to is None


def lacking_result(module: Module) -> str | None:
    """Why the profiler stays: the note of a method that is called and the target's lacks."""
    bound = {module.text(node) for node in bound_profilers(module)}
    for node in module.names.nodes[ast.Attribute]:
        advice = module.vocabulary.moved(f"{PROFILE}.{node.attr}")
        if advice is None or advice.to is not None:
            continue
        # `events` is an everyday word, `key_averages` is not.
        if "_" in node.attr or module.text(node.value) in bound:
            return advice.note
    return None


def bound_profilers(module: Module) -> list[ast.expr]:
    """What keeps a profiler: `with profile() as p`, `self.p = profile()`."""
    nodes = module.names.nodes
    found = []
    for each in nodes[ast.withitem]:
        if each.optional_vars is not None and makes(module, each.context_expr):
            found.append(each.optional_vars)
    for node in nodes[ast.Assign]:
        if makes(module, node.value):
            found += node.targets
    return found


def makes(module: Module, node: ast.expr) -> bool:
    """Whether an expression makes a profiler."""
    return isinstance(node, ast.Call) and module.names.dotted(node.func) == PROFILE
