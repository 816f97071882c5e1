"""Files that compute with TensorFlow: which of the vendor's roads fits their version of it.

The generation is read from the names that a file uses; files that import torch as well take
TensorFlow for logs and data and are left out. What it does not know: the version that is installed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from joymigrate.model import Finding, Tier
from joymigrate.rewrite.module import Module

RULE = "JM240"
FIRST = "compat.v1"  # below the module: advice for programs of TensorFlow 1


def find(module: Module) -> Iterator[Finding]:
    """One finding, at the first import of TensorFlow."""
    data = next(item for item in module.rule(RULE).match if item.get("by") == "codemod")
    name = str(data["module"])
    if name not in module.source.text:
        return
    statements = [*module.names.nodes[ast.Import], *module.names.nodes[ast.ImportFrom]]
    tops = {node: tops_of(module, node) for node in statements}
    mine = [node for node in statements if name in tops[node]]
    if not mine or module.project.locate(name) is not None:
        return
    module.handled.update(mine)
    if module.vocabulary.same_device or any("torch" in each for each in tops.values()):
        return
    node = min(mine, key=lambda each: each.lineno)
    marks: Any = data["first"]
    first = generation(module, name, list(marks), mine)
    advice = module.context.chip.import_advice(f"{name}.{FIRST}" if first else name)
    reason = advice.note if advice is not None else None
    yield module.find(RULE, node, tier=Tier.REPORT, reason=reason)


def tops_of(module: Module, node: ast.Import | ast.ImportFrom) -> set[str]:
    """The packages that a statement imports from."""
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    return {module.names.absolute(node).split(".")[0]}


def generation(
    module: Module, name: str, first: list[str], statements: list[ast.Import | ast.ImportFrom]
) -> bool:
    """Whether a file uses names that only TensorFlow 1 has."""
    chains = [dotted for _, dotted in module.names.imported_chains()]
    for node in statements:
        if isinstance(node, ast.Import):
            chains += [alias.name for alias in node.names]
        else:
            chains += [f"{module.names.absolute(node)}.{alias.name}" for alias in node.names]
    marks = tuple(f"{name}.{each}" for each in first)
    return any(chain == mark or chain.startswith(f"{mark}.") for chain in chains for mark in marks)
