"""What a program reads from torch's profiler and the target's has not: `key_averages()`.

A file of the project that reads it without a profiler of its own is given one by another.
"""

from __future__ import annotations

import ast

from joymigrate.rewrite.module import Module

PROFILE = "torch.profiler.profile"
READ = "key_averages"
PROFILING = "profile("  # a file that has it reads its own


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
    advice = module.vocabulary.moved(f"{PROFILE}.{READ}")
    if (
        advice is not None
        and advice.to is None
        and module.project.speaks_of(f".{READ}(", PROFILING)
    ):
        return advice.note  # a file that makes no profiler reads one that it is given
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
