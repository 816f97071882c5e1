"""Builds of C++ extensions without kernels: `CUDAExtension("ops", ["ops.cpp"])` in a setup.py.

The chip's own class takes the place of the origin's, where every source is written in the call and
none is a CUDA source. What becomes of the sources themselves is told with them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite.module import Module

RULE = "JM207"
KERNELS = (".cu", ".cuh")


def find(module: Module) -> Iterator[Finding]:
    """One finding for the import of the class, with its uses, where all of them can change."""
    known = module.context.chip.kernels.get("extension") or {}
    old, new = str(known.get("from", "")), str(known.get("to", ""))
    name = old.rpartition(".")[2]
    direct = module.context.style is Style.DIRECT
    if not new or not direct or module.vocabulary.same_device or name not in module.source.text:
        return
    for node in module.names.nodes[ast.ImportFrom]:
        alias = next(
            (a for a in node.names if f"{module.names.absolute(node)}.{a.name}" == old), None
        )
        uses = [top for top, dotted in module.names.imported_chains() if dotted == old]
        if alias is None or module.guarded(node) is not None or not uses:
            continue
        if not all(host_only(module, use) for use in uses):
            return
        module.handled.update((alias, *uses))
        yield move_import(module, node, alias, uses, new)
        return


def host_only(module: Module, use: ast.expr) -> bool:
    """Whether a use is a call whose sources are written out and hold no CUDA source."""
    call = getattr(use, "parent", None)
    if not isinstance(use, ast.Name) or not isinstance(call, ast.Call) or call.func is not use:
        return False
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    sources = call.args[1] if len(call.args) > 1 else given.get("sources")
    if not isinstance(sources, (ast.List, ast.Tuple)) or not sources.elts:
        return False
    names = [each.value if isinstance(each, ast.Constant) else None for each in sources.elts]
    return all(isinstance(each, str) and not each.endswith(KERNELS) for each in names)


def move_import(
    module: Module, node: ast.ImportFrom, alias: ast.alias, uses: list[ast.expr], new: str
) -> Finding:
    """The import and its uses, written anew."""
    package, _, name = new.rpartition(".")
    bound = f"{name} as {alias.asname}" if alias.asname else name
    line = f"from {package} import {bound}"
    start, end = module.span(node)
    edits = [] if alias.asname else [(*module.span(use), name) for use in uses]
    if len(node.names) == 1:
        edits.append((start, end, line))
    else:
        indent = module.source.line_text(node.lineno)[
            : start - module.source.starts[node.lineno - 1]
        ]
        edits.append(
            (end, end, "; " + line if indent.strip() else f"{module.source.newline}{indent}{line}")
        )
        edits.append((*without(module, node, alias), ""))
    after = module.preview(start, end, edits)
    return module.find(RULE, node, edits=edits, after=after, tier=Tier.UNSAFE)


def without(module: Module, node: ast.ImportFrom, alias: ast.alias) -> tuple[int, int]:
    """The span of one of several imported names with its comma."""
    at = node.names.index(alias)
    start, end = module.span(alias)
    if at + 1 < len(node.names):
        end = module.span(node.names[at + 1])[0]
    else:
        start = module.span(node.names[at - 1])[1]
    # A comment between two names stays, and with it the name.
    return (end, end) if "#" in module.source.text[start:end] else (start, end)
