"""Imports of the origin's module: `import torch.cuda as c`, `from torch.cuda import amp`, ….

The statement is rewritten and the names it binds keep their meaning, so no use has to change.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from joymigrate.language import Text
from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite import foreign
from joymigrate.rewrite.codemods.device_names import moved_rule, text_is_chain
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.moved_names import gives_device, moved_part
from joymigrate.rewrite.portable.imports import (
    is_bound_elsewhere,
    is_module,
    write_import,
    write_unbound,
)
from joymigrate.rewrite.portable.names import whole_line


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
        if [node] in blocks(getattr(node, "parent", None)):
            # `try: import …`: a block needs a statement.
            yield module.find("JM001", node, tier=Tier.REPORT, reason="the only statement there")
            continue
        beside = joined_span(module, node)
        if beside is not None:
            yield module.find("JM001", node, after="", edits=[(*beside, "")])
            continue
        line_start = module.source.starts[node.lineno - 1]
        next_line = node.end_lineno or node.lineno
        alone = module.source.line_text(node.lineno).strip() == module.source.text[start:end]
        if not alone:
            continue
        if next_line < len(module.source.starts):
            line_end = module.source.starts[next_line]
        else:  # the last line, without a newline of its own: the one before it goes
            line_start, line_end = len(module.source.text[:line_start].rstrip("\r\n")), end
        yield module.find("JM001", node, after="", edits=[(line_start, line_end, "")])


def joined_span(module: Module, node: ast.stmt) -> tuple[int, int] | None:
    """Span of a statement with the semicolon that joins it to a neighbour; None for lines alone."""
    start, end = module.span(node)
    text, line_start = module.source.text, module.source.starts[node.lineno - 1]
    if not text[line_start:start].strip():
        return None
    block = next((b for b in blocks(getattr(node, "parent", None)) if node in b), [])
    at = block.index(node) if block else 0
    if at and text[module.span(block[at - 1])[1] : start].strip() == ";":
        return module.span(block[at - 1])[1], end
    if at + 1 < len(block) and text[end : module.span(block[at + 1])[0]].strip() == ";":
        return start, module.span(block[at + 1])[0]
    return None


def plain(module: Module, node: ast.Import) -> Iterator[Finding]:
    """`import torch.cuda`, `import torch.cuda.amp as a`."""
    words = module.vocabulary
    for alias in node.names:
        rest = words.below(alias.name)
        own = alias.asname is None and alias.name == module.context.origin.package
        if rest is None or own:
            moved_to = moved_module(module, alias.name)
            if moved_to and alias.asname and not module.context.style.portable:
                yield from moved_alias(module, node, alias, moved_to)
            continue
        guard = module.guarded(node)
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
    if not module.context.style.portable:
        name = words.relation.import_name(alias.name) or alias.name
        plain_name = f"{words.to_module}.{rest}".rstrip(".")
        if alias.asname is None and name != plain_name:
            return module.find(
                "JM102",
                alias,
                tier=Tier.REPORT,
                reason=Text(
                    "{to_module} is no module that can be imported; use `import {name}`",
                    to_module=words.to_module,
                    name=name,
                ),
            )
        edits = [(start, start + len(alias.name), name)]
        return module.find("JM102", alias, edits=edits, needs="package")
    if alias.asname is None:
        # `import torch.cuda` binds `torch`; the uses are rewritten, so the plain import suffices.
        line = whole_line(module, node) if len(node.names) == 1 else None
        if line is not None and is_bound_elsewhere(module, node):
            return module.find("JM102", alias, after="", edits=[(*line, "")])
        return module.find("JM102", alias, edits=[(start, end, "torch")])
    if module.context.style is Style.ACCELERATOR:
        return write_unbound(module, node, alias)
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
        (top, dotted)
        for top, dotted in module.names.imported_chains()
        if dotted.startswith(alias.name + ".") and root_name(top) == alias.asname
    ]
    listed = module.vocabulary.relation.moved
    if not used or any(prefix_in(dotted, alias.name, listed) is None for _, dotted in used):
        return
    start, _ = module.span(alias)
    edits = [(start, start + len(alias.name), target)]
    for top, dotted in used:
        found = moved_part(module, top, dotted)
        if found is None or found[2].to is None or not text_is_chain(module.text(found[0])):
            return
        written = f"{alias.asname}{found[2].to[len(target) :]}"
        if written != module.text(found[0]):
            edits.append((*module.span(found[0]), written))
    # The alias keeps its name, so that its uses stay as they are.
    module.handled.update(top for top, _ in used)
    yield module.find("JM160", alias, edits=edits, needs="package")


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
    sub = words.below(base)
    if sub is not None:
        yield from below(module, node, sub)
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
    if module.context.style is Style.ACCELERATOR:
        modules = [a for a in node.names if is_module(f"{prefix}{a.name}")]
        rule = "JM140" if sub.startswith("amp") else "JM102"
        alone = write_unbound(module, node, modules[0]) if len(modules) == 1 else None
        yield alone or write_import(module, rule, node, sub)
        return
    found = {alias: words.name(prefix + alias.name) for alias in node.names}
    missing = [
        Text(
            "{name}: {note}",
            name=a.name,
            note=f.note or Text("not on {chip}", chip=module.context.chip.name),
        )
        for a, f in found.items()
        if f.to is None or f.tier is Tier.REPORT
    ]
    elsewhere = [a.name for a, f in found.items() if f.to and not f.to.startswith(prefix)]
    if missing or elsewhere:
        reason = Text.join(
            "; ",
            missing or [Text("{elsewhere} lives elsewhere there", elsewhere=", ".join(elsewhere))],
        )
        yield module.find("JM102", node, tier=Tier.REPORT, reason=reason)
        return
    rule = "JM140" if sub.startswith("amp") else "JM102"
    if module.context.style is Style.AGNOSTIC:
        names = {a.name: (found[a].to or "")[len(prefix) :] for a in found}
        hindrance = unbindable(module, node, names)
        if hindrance is not None:
            yield module.find(rule, node, tier=Tier.REPORT, reason=hindrance)
            return
        lines = [
            (alias.asname or alias.name, f"{module.helper}.device_module().{found[alias].to}")
            for alias in node.names
        ]
        text = f"{', '.join(n for n, _ in lines)} = {', '.join(v for _, v in lines)}"
        yield module.find(rule, node, edits=[(*module.span(node), text)], needs="helper")
        return
    edits = [imported_module(module, node)]
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


def unbindable(module: Module, node: ast.ImportFrom, names: dict[str, str]) -> str | None:
    """Why an import can't become a binding from the helper; None when it can."""
    other = [
        Text("{old} is {new} on {chip}", old=old, new=new, chip=module.context.chip.name)
        for old, new in names.items()
        if old != new
    ]
    if other:
        return Text.join("; ", other)
    return "comments inside the import" if "#" in module.text(node) else None


def imported_module(module: Module, node: ast.ImportFrom) -> tuple[int, int, str]:
    """The edit of the module's name in `from torch.cuda… import …`."""
    start, end = module.span(node)
    name = node.module or ""
    at = module.source.text.index(name, start, end)
    return at, at + len(name), module.vocabulary.relation.import_name(name) or name


def platform_itself(module: Module, node: ast.ImportFrom, last: str) -> Finding:
    """`from torch import cuda`: the import and every use change together."""
    words = module.vocabulary
    alias = next(a for a in node.names if a.name == last)
    guard = module.guarded(node)
    if guard is not None:
        return module.find("JM102", node, tier=Tier.REPORT, reason=guard)
    if module.context.style is Style.ACCELERATOR:
        return write_unbound(module, node, alias)
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
    import libcst as cst  # of a few files only: it takes long to load

    statement = cst.parse_statement(text)
    assert isinstance(statement, cst.SimpleStatementLine)
    imported = statement.body[0]
    assert isinstance(imported, cst.ImportFrom)
    assert not isinstance(imported.names, cst.ImportStar)
    kept = [a for a in imported.names if a.evaluated_name != alias.name]
    kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    rest = cst.Module([]).code_for_node(imported.with_changes(names=kept))
    start, _ = module.span(node)
    indent = module.source.line_text(node.lineno)[: start - module.source.starts[node.lineno - 1]]
    separator = "; " if indent.strip() else f"{module.source.newline}{indent}"
    new = f"{rest}{separator}{binding}"
    return module.find("JM102", node, edits=[(*module.span(node), new)], needs="helper")


def moved_names(module: Module, node: ast.ImportFrom, base: str) -> Iterator[Finding]:
    """`from torch.profiler import profile, ProfilerActivity` when the names moved elsewhere."""
    listed = module.vocabulary.relation.moved
    moved = [a for a in node.names if f"{base}.{a.name}" in listed]
    if not moved:
        return
    advice = {a: listed[f"{base}.{a.name}"] for a in moved}
    rule = moved_rule(f"{base}.{moved[0].name}")
    targets = {(found.to or "").rpartition(".")[0] for found in advice.values()}
    same_names = all((f.to or "").rpartition(".")[2] == a.name for a, f in advice.items())
    trusted = all(f.tier is not Tier.REPORT and f.to for f in advice.values())
    if module.context.style is Style.AGNOSTIC:
        if "profiler" not in base:
            yield module.find(rule, node, tier=Tier.REPORT, reason="imported by name")
        return
    guard = module.guarded(node)
    if guard or len(targets) != 1 or not trusted:
        reason = guard or Text.join(
            "; ", [Text("{old} → {new}", old=a.name, new=f.to or f.note) for a, f in advice.items()]
        )
        yield module.find(rule, node, tier=Tier.REPORT, reason=reason)
        return
    target = targets.pop()
    if bound_beside(module, node, moved, target, +1) is not None:
        return  # the next statement binds the names anew
    lacking = [a for a in moved if lacking_use(module, f"{base}.{a.name}")]
    if lacking:
        # Those stay where they are, and each use that has a counterpart is written out.
        module.unmoved.update(f"{base}.{a.name}" for a in lacking)
        moved = [a for a in moved if a not in lacking]
        if not moved:
            return
    tier = Tier.UNSAFE if any(f.tier is Tier.UNSAFE for f in advice.values()) else Tier.SAFE
    for name in (a.asname or a.name for a in moved):
        module.handled.update(n for n in module.names.nodes[ast.Name] if n.id == name)
    before = bound_beside(module, node, moved, target, -1)
    if len(moved) == len(node.names) and before is not None:
        # The way back: the statement before binds the same names already.
        span = (module.span(before)[1], module.span(node)[1])
        if module.source.text[span[0] : module.span(node)[0]].strip() in ("", ";"):
            yield module.find(rule, node, after="", edits=[(*span, "")], tier=tier)
            return
    if same_names and len(moved) == len(node.names):
        start, end = module.span(node)
        at = module.source.text.index(base, start, end)
        yield module.find(
            rule, node, edits=[(at, at + len(base), target)], tier=tier, needs="package"
        )
        return
    yield rebind(module, node, rule, tier, target, [(a, advice[a].to or "") for a in moved])


def lacking_use(module: Module, name: str) -> bool:
    """Whether an imported name is used for something that its counterpart lacks.

    A use in a branch for another back end, which the target never enters, does not count.
    """
    for top, dotted in module.names.imported_chains():
        advice = module.vocabulary.moved(dotted) if dotted.startswith(f"{name}.") else None
        if advice is not None and advice.to is None and not foreign.elsewhere(module, top):
            return True
        if dotted == name and gives_device(top, name):
            return True
    return False


def bound_beside(
    module: Module, node: ast.ImportFrom, moved: list[ast.alias], target: str, step: int
) -> ast.ImportFrom | None:
    """The statement after (or, with -1, before) `node` when it imports the names from `target`."""
    block = next((b for b in blocks(getattr(node, "parent", None)) if node in b), [])
    at = block.index(node) + step if block else -1
    other = block[at] if 0 <= at < len(block) else None
    if not isinstance(other, ast.ImportFrom) or module.names.absolute(other) != target:
        return None
    bound = {alias.asname or alias.name for alias in other.names}
    return other if {alias.asname or alias.name for alias in moved} <= bound else None


def blocks(owner: ast.AST | None) -> Iterator[list[ast.stmt]]:
    """The statement lists of a node."""
    for name in ("body", "orelse", "finalbody"):
        found = getattr(owner, name, None)
        if isinstance(found, list):
            yield found


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
    start, end = module.span(node)
    indent = module.source.line_text(node.lineno)[: start - module.source.starts[node.lineno - 1]]
    # Behind `if x:` or another statement a line of its own would not be in the same block.
    separator = "; " if indent.strip() else f"{module.source.newline}{indent}"
    return module.find(
        rule,
        node,
        after=f"{module.text(node)}{separator}{line}",
        edits=[(end, end, f"{separator}{line}")],
        tier=tier,
        needs="package",
    )
