"""Imports of the origin's module: `import torch.cuda as c`, `from torch.cuda import amp`, ….

The statement is rewritten and the names it binds keep their meaning, so no use has to change.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite.module import Module


def find(module: Module) -> Iterator[Finding]:
    """Findings for import statements that name the origin's module or moved names."""
    if module.vocabulary.same_device:
        return
    for node in module.names.nodes[ast.Import]:
        yield from plain(module, node)
    for node in module.names.nodes[ast.ImportFrom]:
        yield from from_import(module, node)
    yield from own_package(module)


def own_package(module: Module) -> Iterator[Finding]:
    """The import of the origin's own torch package, on the way back: the line goes away."""
    package = module.context.origin.package
    if not package or module.context.chip.package:
        return
    for node in module.names.nodes[ast.Import]:
        if [alias.name for alias in node.names] != [package] or node.names[0].asname:
            continue
        start, end = module.span(node)
        line_start = module.source.starts[node.lineno - 1]
        next_line = node.end_lineno or node.lineno
        alone = module.source.line_text(node.lineno).strip() == module.source.text[start:end]
        if not alone or next_line >= len(module.source.starts):
            continue
        line_end = module.source.starts[next_line]
        yield module.find("JM001", node, after="", edits=[(line_start, line_end, "")])


def plain(module: Module, node: ast.Import) -> Iterator[Finding]:
    """`import torch.cuda`, `import torch.cuda.amp as a`."""
    words = module.vocabulary
    for alias in node.names:
        if alias.name != words.module and not alias.name.startswith(words.module + "."):
            moved_to = moved_module(module, alias.name)
            if moved_to and alias.asname and module.context.style is not Style.AGNOSTIC:
                yield from moved_alias(module, node, alias, moved_to)
            continue
        guard = module.guarded(node)
        rest = alias.name[len(words.module) + 1 :]
        target = words.name(rest).to if rest else words.to_module
        if guard is not None or target is None:
            yield module.find(
                "JM102", alias, tier=Tier.REPORT, reason=guard or words.name(rest).note
            )
            continue
        yield plain_edit(module, node, alias, rest)


def plain_edit(module: Module, node: ast.Import, alias: ast.alias, rest: str) -> Finding:
    """The rewritten `import torch.cuda…`."""
    words = module.vocabulary
    start, end = module.span(alias)
    if module.context.style is not Style.AGNOSTIC:
        at = start + len(words.module) - len(words.device)
        edits = [(at, at + len(words.device), words.to_device)]
        return module.find("JM102", alias, edits=edits, needs="package")
    if alias.asname is None:
        # `import torch.cuda` binds `torch`; the uses are rewritten, so the plain import suffices.
        return module.find("JM102", alias, edits=[(start, end, "torch")])
    if len(node.names) > 1:
        return module.find(
            "JM102", alias, tier=Tier.REPORT, reason="several imports in one statement"
        )
    dotted = f"{module.helper}.device_module()" + (f".{rest}" if rest else "")
    return module.find(
        "JM102", node, edits=[(*module.span(node), f"{alias.asname} = {dotted}")], needs="helper"
    )


def moved_module(module: Module, name: str) -> str | None:
    """Where a whole module moved to, when every name of it that is listed went there."""
    moved = module.vocabulary.relation.moved
    inside = {key: advice for key, advice in moved.items() if key.startswith(name + ".")}
    targets = {
        (a.to or "").rpartition(".")[0]
        for key, a in inside.items()
        if key.count(".") == name.count(".") + 1
    }
    return targets.pop() if len(targets) == 1 and inside else None


def moved_alias(
    module: Module, node: ast.Import, alias: ast.alias, target: str
) -> Iterator[Finding]:
    """`import torch.profiler as p` when every name used through `p` moved along."""
    used = [
        dotted
        for top, dotted in module.names.imported_chains()
        if dotted.startswith(alias.name + ".") and root_name(top) == alias.asname
    ]
    listed = module.vocabulary.relation.moved
    if not used or any(prefix_in(dotted, alias.name, listed) is None for dotted in used):
        return
    start, _ = module.span(alias)
    yield module.find(
        "JM160", alias, edits=[(start, start + len(alias.name), target)], needs="package"
    )


def root_name(node: ast.expr) -> str | None:
    """The name at the start of an attribute chain."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def prefix_in(dotted: str, base: str, listed: object) -> str | None:
    """The first name below `base` in `dotted` when it is in `listed`."""
    first = base + "." + dotted[len(base) + 1 :].split(".")[0]
    return first if first in listed else None  # type: ignore[operator]


def from_import(module: Module, node: ast.ImportFrom) -> Iterator[Finding]:
    """`from torch import cuda`, `from torch.cuda… import …`, `from torch.profiler import …`."""
    words = module.vocabulary
    base = module.names.absolute(node)
    if base == words.module or base.startswith(words.module + "."):
        yield from below(module, node, base[len(words.module) + 1 :])
        return
    parent, _, last = words.module.rpartition(".")
    if base == parent and any(alias.name == last for alias in node.names):
        yield platform_itself(module, node, last)
        return
    yield from moved_names(module, node, base)


def below(module: Module, node: ast.ImportFrom, sub: str) -> Iterator[Finding]:
    """`from torch.cuda[.sub] import a, b`."""
    words = module.vocabulary
    guard = module.guarded(node)
    if guard is not None or node.names[0].name == "*":
        reason = guard or "a star import: what it binds is not visible here"
        yield module.find("JM102", node, tier=Tier.REPORT, reason=reason)
        return
    prefix = f"{sub}." if sub else ""
    found = {alias: words.name(prefix + alias.name) for alias in node.names}
    missing = [
        f"{a.name}: {f.note or 'not on ' + module.context.chip.name}"
        for a, f in found.items()
        if f.to is None or f.tier is Tier.REPORT
    ]
    elsewhere = [a.name for a, f in found.items() if f.to and not f.to.startswith(prefix)]
    if missing or elsewhere:
        reason = "; ".join(missing or [f"{', '.join(elsewhere)} lives elsewhere there"])
        yield module.find("JM102", node, tier=Tier.REPORT, reason=reason)
        return
    rule = "JM140" if sub.startswith("amp") else "JM102"
    if module.context.style is Style.AGNOSTIC:
        lines = [
            (alias.asname or alias.name, f"{module.helper}.device_module().{found[alias].to}")
            for alias in node.names
        ]
        text = f"{', '.join(n for n, _ in lines)} = {', '.join(v for _, v in lines)}"
        yield module.find(rule, node, edits=[(*module.span(node), text)], needs="helper")
        return
    edits = [platform_token(module, node)]
    for alias, advice in found.items():
        new = (advice.to or "")[len(prefix) :]
        start, end = module.span(alias)
        if new == alias.asname:
            edits.append((start, end, new))
        elif new != alias.name:
            keep = "" if alias.asname else f" as {alias.name}"
            edits.append((start, start + len(alias.name), new + keep))
    tier = Tier.UNSAFE if any(f.tier is Tier.UNSAFE for f in found.values()) else Tier.SAFE
    yield module.find(rule, node, edits=edits, tier=tier, needs="package")


def platform_token(module: Module, node: ast.ImportFrom) -> tuple[int, int, str]:
    """The edit of the platform's token in `from torch.cuda import …`."""
    words = module.vocabulary
    start, end = module.span(node)
    at = module.source.text.index(words.module, start, end) + len(words.module) - len(words.device)
    return at, at + len(words.device), words.to_device


def platform_itself(module: Module, node: ast.ImportFrom, last: str) -> Finding:
    """`from torch import cuda`: the import and every use change together."""
    words = module.vocabulary
    alias = next(a for a in node.names if a.name == last)
    guard = module.guarded(node)
    if guard is not None:
        return module.find("JM102", node, tier=Tier.REPORT, reason=guard)
    if module.context.style is Style.AGNOSTIC:
        return split_off(module, node, alias)
    start, _ = module.span(alias)
    edits = [(start, start + len(last), words.to_device)]
    if alias.asname is None:
        uses = uses_of(module, last)
        if uses is None:
            edits = [(start, start + len(last), f"{words.to_device} as {last}")]
        else:
            edits += [(at, at + len(last), words.to_device) for at in uses]
    elif alias.asname == words.to_device:
        # The way back of `from torch import <device> as cuda`.
        edits = [(*module.span(alias), alias.asname)]
    return module.find("JM102", node, edits=edits, needs="package")


def uses_of(module: Module, name: str) -> list[int] | None:
    """Offsets of every use of an imported name; None where renaming it would not be safe."""
    found = module.names.root.names.get(name, [])
    taken = any(
        module.vocabulary.to_device in scope.names for scope in module.names.scopes.values()
    )
    if taken or len(found) != 1 or found[0].kind != "import":
        return None
    shadowed = sum(name in scope.names for scope in module.names.scopes.values()) > 1
    exported = any(
        isinstance(n.value, str)
        and n.value == name
        and isinstance(getattr(n, "parent", None), (ast.List, ast.Tuple))
        for n in module.names.nodes[ast.Constant]
        if "__all__" in module.source.text
    )
    if shadowed or exported:
        return None
    offsets = []
    for node in module.names.nodes[ast.Name]:
        if node.id != name:
            continue
        start, end = module.span(node)
        if module.source.text[start:end] != name or not isinstance(node.ctx, ast.Load):
            return None
        offsets.append(start)
    return offsets


def split_off(module: Module, node: ast.ImportFrom, alias: ast.alias) -> Finding:
    """Take one name out of a `from` import and bind it from the helper on the next line."""
    name = alias.asname or alias.name
    text = module.text(node)
    binding = f"{name} = {module.helper}.device_module()"
    if len(node.names) == 1:
        return module.find("JM102", node, edits=[(*module.span(node), binding)], needs="helper")
    if "#" in text or ";" in module.source.line_text(node.lineno):
        return module.find("JM102", node, tier=Tier.REPORT, reason="comments inside the import")
    statement = cst.parse_statement(text)
    assert isinstance(statement, cst.SimpleStatementLine)
    imported = statement.body[0]
    assert isinstance(imported, cst.ImportFrom)
    assert not isinstance(imported.names, cst.ImportStar)
    kept = [a for a in imported.names if a.evaluated_name != alias.name]
    kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    rest = cst.Module([]).code_for_node(imported.with_changes(names=kept))
    indent = " " * node.col_offset
    new = f"{rest}{module.source.newline}{indent}{binding}"
    return module.find("JM102", node, edits=[(*module.span(node), new)], needs="helper")


def moved_names(module: Module, node: ast.ImportFrom, base: str) -> Iterator[Finding]:
    """`from torch.profiler import profile, ProfilerActivity` when the names moved elsewhere."""
    listed = module.vocabulary.relation.moved
    moved = [a for a in node.names if f"{base}.{a.name}" in listed]
    if not moved:
        return
    advice = {a: listed[f"{base}.{a.name}"] for a in moved}
    rule = "JM160" if "profiler" in base else "JM131"
    targets = {(found.to or "").rpartition(".")[0] for found in advice.values()}
    same_names = all((f.to or "").rpartition(".")[2] == a.name for a, f in advice.items())
    trusted = all(f.tier is not Tier.REPORT and f.to for f in advice.values())
    if module.context.style is Style.AGNOSTIC:
        if "profiler" not in base:
            yield module.find(rule, node, tier=Tier.REPORT, reason="imported by name")
        return
    guard = module.guarded(node)
    if guard or len(targets) != 1 or not trusted:
        reason = guard or "; ".join(f"{a.name} → {f.to or f.note}" for a, f in advice.items())
        yield module.find(rule, node, tier=Tier.REPORT, reason=reason)
        return
    target = targets.pop()
    tier = Tier.UNSAFE if any(f.tier is Tier.UNSAFE for f in advice.values()) else Tier.SAFE
    for name in (a.asname or a.name for a in moved):
        module.handled.update(n for n in module.names.nodes[ast.Name] if n.id == name)
    if same_names and len(moved) == len(node.names):
        start, end = module.span(node)
        at = module.source.text.index(base, start, end)
        yield module.find(
            rule, node, edits=[(at, at + len(base), target)], tier=tier, needs="package"
        )
        return
    yield rebind(module, node, rule, tier, target, [(a, advice[a].to or "") for a in moved])


def rebind(
    module: Module,
    node: ast.ImportFrom,
    rule: str,
    tier: Tier,
    target: str,
    names: list[tuple[ast.alias, str]],
) -> Finding:
    """Leave the import and bind the moved names again on a line of their own after it."""
    parts = []
    for alias, to in names:
        bound, last = alias.asname or alias.name, to.rpartition(".")[2]
        parts.append(last if last == bound else f"{last} as {bound}")
    line = f"from {target} import {', '.join(parts)}"
    _, end = module.span(node)
    indent = " " * node.col_offset
    return module.find(
        rule,
        node,
        after=f"{module.text(node)}{module.source.newline}{indent}{line}",
        edits=[(end, end, f"{module.source.newline}{indent}{line}")],
        tier=tier,
        needs="package",
    )
