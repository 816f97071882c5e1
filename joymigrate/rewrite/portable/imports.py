"""Imports of the origin's module, and of names from it, in torch's portable words."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from joymigrate.model import Finding, Tier
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.portable.names import root_of, whole_line, write
from joymigrate.rewrite.portable.table import UNKNOWN, forms, unknown
from joymigrate.rewrite.portable.words import torch_at


def is_module(known: str) -> bool:
    """Whether a name below the origin's module is a module of names: `amp`, `memory`."""
    return any(name.startswith(f"{known}.") for name in forms())


def write_import(module: Module, rule: str, node: ast.ImportFrom, sub: str) -> Finding:
    """`from torch.cuda.amp import autocast` from torch's own module, with the calls of what it
    binds: all of it or nothing."""
    lines: dict[str, list[str]] = {}
    edits: list[tuple[int, int, str]] = []
    tier, reason = Tier.SAFE, None
    for alias in node.names:
        known = f"{sub}.{alias.name}" if sub else alias.name
        form, bound = forms().get(known), alias.asname or alias.name
        if form is None or form.kind in ("module", "entered") or "#" in module.text(node):
            return module.find(rule, node, tier=Tier.REPORT, reason=unknown(known))
        home, _, last = form.to.rpartition(".")
        lines.setdefault(home, []).append(last if last == bound else f"{last} as {bound}")
        for use in uses(module, bound, f"{module.vocabulary.module}.{known}"):
            new = write(module, use, known)
            if not new.edits:
                return module.find(rule, node, tier=Tier.REPORT, reason=new.reason)
            if new.tier is not Tier.SAFE:
                tier, reason = new.tier, new.reason
            (start, end, text), *rest = new.edits
            called = text.partition("(")[1:]  # the import keeps the name: `@custom_fwd(…)`
            edits += [(start, end, bound + "".join(called))] if all(called) else []
            edits += rest
    indent = module.source.line_text(node.lineno)[: node.col_offset]
    apart = "; " if indent.strip() else f"{module.source.newline}{indent}"
    text = apart.join(f"from {home} import {', '.join(names)}" for home, names in lines.items())
    needs = torch_at(module, node)[1] if edits else None
    edits = [(*module.span(node), text), *edits]
    return module.find(rule, node, edits=edits, tier=tier, reason=reason, needs=needs)


def uses(module: Module, bound: str, dotted: str) -> Iterator[ast.expr]:
    """Where a file uses a name that it imported."""
    for top, name in module.names.imported_chains():
        root = root_of(top)
        if getattr(root, "id", None) == bound and f"{name}.".startswith(f"{dotted}."):
            yield root


def write_unbound(module: Module, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> Finding:
    """`from torch import cuda`, `import torch.cuda.amp as amp`: every use is written through torch,
    and the name is no longer imported."""
    bound, base = alias.asname or alias.name, module.vocabulary.module
    edits: list[tuple[int, int, str]] = []
    tier, reason = Tier.SAFE, None
    for top, dotted in module.names.imported_chains():
        if getattr(root_of(top), "id", None) != bound or not f"{dotted}.".startswith(f"{base}."):
            continue
        known = module.vocabulary.known_prefix(dotted[len(base) + 1 :])
        at = top
        for _ in range(dotted.count(".") - f"{base}.{known}".count(".")):
            at = getattr(at, "value", at)
        new = write(module, at, known)
        if not new.edits:
            return module.find("JM102", node, tier=Tier.REPORT, reason=new.reason)
        if new.tier is not Tier.SAFE:
            tier, reason = new.tier, new.reason
        edits += new.edits
    if "#" in module.text(node) or not edits:
        return module.find("JM102", node, tier=Tier.REPORT, reason=UNKNOWN)
    kept = [ast.unparse(each) for each in node.names if each is not alias]
    _, needs = torch_at(module, node)
    head = "import "
    if isinstance(node, ast.ImportFrom):
        head = f"from {module.names.absolute(node)} import "
    text = head + ", ".join(kept) if kept else "import torch"
    span = module.span(node)
    if not kept and is_bound_elsewhere(module, node):
        span, text = whole_line(module, node) or span, ""
    if not text and span == module.span(node):
        text = "import torch"
    edits.insert(0, (*span, text))
    needs = needs if kept else None
    return module.find("JM102", node, edits=edits, tier=tier, reason=reason, needs=needs)


def is_bound_elsewhere(module: Module, node: ast.stmt) -> bool:
    """Whether an import before a statement, in its own block, binds torch."""
    block: list[ast.stmt] = getattr(getattr(node, "parent", None), "body", [])
    before = block[: block.index(node)] if node in block else []
    found = [one for each in module.names.root.names.values() for one in each]
    return any(one.dotted == "torch" and one.node in before for one in found)
