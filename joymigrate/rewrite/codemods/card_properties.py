"""Decisions by what a card is: fields of its properties, and its marketing name in a comparison."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from joymigrate.language import Text
from joymigrate.model import Finding, Tier
from joymigrate.rewrite.module import Module

# Fields of the origin's device properties that speak of its architecture.
FIELDS = (
    "major", "minor", "warp_size", "regs_per_multiprocessor", "gcnArchName",
    "max_threads_per_multi_processor", "shared_memory_per_block",
    "shared_memory_per_multiprocessor",
    "shared_memory_per_block_optin",
)  # fmt: skip


def architecture_fields(module: Module) -> list[ast.Attribute]:
    """Fields of a card's properties that the target's have not."""
    if "get_device_properties" not in module.source.text:
        return []
    properties = f"{module.vocabulary.module}.get_device_properties"
    return [
        node
        for node in module.names.nodes[ast.Attribute]
        if node.attr in FIELDS and comes_from(module, node.value, properties)
    ]


def find(module: Module) -> Iterator[Finding]:
    """Findings for architecture fields and for compared names of cards."""
    words = module.vocabulary
    if words.same_device or "get_device_" not in module.source.text:
        return
    properties = f"{words.module}.get_device_properties"
    for node in architecture_fields(module):
        reason = Text("a field of {properties}'s result", properties=properties)
        yield module.find("JM107", node, tier=Tier.REPORT, reason=reason)
    for compare in module.names.nodes[ast.Compare]:
        operands = (compare.left, *compare.comparators)
        if any(comes_from(module, part, f"{words.module}.get_device_name") for part in operands):
            yield module.find("JM107", compare, tier=Tier.REPORT, reason="a card's marketing name")


def comes_from(module: Module, node: ast.expr, callee: str, depth: int = 0) -> bool:
    """Whether an expression is a call of `callee`, a method of its result, or a name for either."""
    if isinstance(node, ast.Call):
        if module.names.dotted(node.func) == callee:
            return True
        return isinstance(node.func, ast.Attribute) and comes_from(
            module, node.func.value, callee, depth
        )
    if not isinstance(node, ast.Name) or depth > 3:
        return False
    found = module.names.lookup(node.id, node)
    values = [binding.value for binding in found[1]] if found else []
    return bool(values) and all(
        value is not None and comes_from(module, value, callee, depth + 1) for value in values
    )
