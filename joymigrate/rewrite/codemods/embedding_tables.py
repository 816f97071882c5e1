"""Imports of TorchRec, where joymigrate's own tables have every name that a file uses.

All imports of a file change together, or none: objects of the two libraries don't mix. With them go
the operators of fbgemm that the file calls by name, for nobody registers these any more then. In
files that stay they are reported one by one, with what the chip's data know of each.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from joymigrate.chips import libraries
from joymigrate.language import Text
from joymigrate.model import Finding, Tier
from joymigrate.rewrite.module import Module

RULE = "JM235"
PACKAGE = "torchrec"
OPERATORS = "torch.ops.fbgemm."
MODULE = "fbgemm"  # of joymigrate's tables: these operators in torch


def find(module: Module) -> Iterator[Finding]:
    """One finding for each import statement of the package, and each operator of fbgemm."""
    if module.vocabulary.same_device:
        return
    moved: set[ast.expr] = set()
    if PACKAGE in module.source.text:
        yield from imports(module, moved)
    if "fbgemm" in module.source.text:
        yield from operators(module, moved)


def imports(module: Module, moved: set[ast.expr]) -> Iterator[Finding]:
    """One finding for each import statement of the package; operators that move are in `moved`."""
    statements = [
        node
        for node in (*module.names.nodes[ast.Import], *module.names.nodes[ast.ImportFrom])
        if of_package(module, node)
    ]
    if not statements or module.project.locate(PACKAGE) is not None:
        return
    data = next(item for item in module.rule(RULE).match if item.get("by") == "codemod")
    module.handled.update(statements)
    note = refusal(module, statements, data)
    called = named_operators(module)
    for node in statements:
        guard = module.guarded(node) or note
        if guard is not None:
            road = module.context.chip.import_advice(PACKAGE)
            reason = Text.join("; ", (guard, road.note if road is not None else ""))
            yield module.find(RULE, node, tier=Tier.REPORT, reason=reason)
            continue
        text = replacement(node, str(data["to"]), data["renamed"])
        edits = [(*module.span(node), text)]
        if called and not moved:
            alias = free_name(module)
            bound = MODULE if alias == MODULE else f"{MODULE} as {alias}"
            indent = " " * node.col_offset
            edits = [(*module.span(node), f"{text}\n{indent}from {data['to']} import {bound}")]
            edits += [(*module.span(top), f"{alias}.{name}") for top, name in called]
            moved |= {top for top, _ in called}
        yield module.find(RULE, node, edits=edits)


def named_operators(module: Module) -> list[tuple[ast.expr, str]]:
    """Where operators of fbgemm are called, and their names (with an overload's); "": of all."""
    return [
        (top, dotted.removeprefix(OPERATORS[:-1]).lstrip("."))
        for top, dotted in module.names.imported_chains()
        if f"{dotted}.".startswith(OPERATORS)
    ]


def free_name(module: Module) -> str:
    """What the file may call the module of operators."""
    bound = set().union(*(scope.names for scope in module.names.scopes.values()))
    return f"joymigrate_{MODULE}" if MODULE in bound else MODULE


def operators(module: Module, moved: set[ast.expr]) -> Iterator[Finding]:
    """Operators of fbgemm that are called by name, and stay."""
    known = libraries.load(module.context.chip.folder / "ops" / "libraries.yaml")
    for top, dotted in named_operators(module):
        if top in moved or not dotted:
            continue
        name = "fbgemm::" + dotted.split(".")[0]
        found = known.of(name)
        if found is None:
            reason = Text("no counterpart of {name} is known", name=name)
        elif found.own:
            reason = Text("{package} registers {name}", package=found.package, name=name)
        else:
            reason = Text("{to} computes {name}", to=found.to, name=name)
        yield module.find("JM204", top, tier=Tier.REPORT, reason=reason)


def of_package(module: Module, node: ast.Import | ast.ImportFrom) -> bool:
    """Whether a statement imports from the package."""
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] == PACKAGE for alias in node.names)
    return module.names.absolute(node).split(".")[0] == PACKAGE


def refusal(
    module: Module, statements: list[ast.Import | ast.ImportFrom], data: dict[str, object]
) -> str | None:
    """Why the file's imports can't change; None where they can."""
    known = {*map(str, data["kept"]), *dict(data["renamed"])}  # type: ignore[call-overload]
    used = set()
    for node in statements:
        if isinstance(node, ast.ImportFrom):
            used |= {f"{module.names.absolute(node)}.{alias.name}" for alias in node.names}
        elif [alias.name for alias in node.names] != [PACKAGE]:
            return Text("several imports in one statement, or a module of the package")
    names = [dotted for _, dotted in module.names.imported_chains() if dotted.startswith(PACKAGE)]
    used |= {dotted for dotted in names if dotted.startswith(f"{PACKAGE}.")}
    if PACKAGE in names:
        return Text("the package itself is passed on")
    missing = sorted(name for name in used if not covers(name, known))
    held = set(map(str, data["operators"]))  # type: ignore[call-overload]
    missing += sorted({f"{OPERATORS}{n}" for _, n in named_operators(module) if n not in held})
    if missing:
        return Text("joymigrate's tables don't have {names}", names=", ".join(missing))
    words = {keyword.arg for call in module.names.nodes[ast.Call] for keyword in call.keywords}
    refused = sorted(words & set(map(str, data["refused"])))  # type: ignore[call-overload]
    if refused:
        return Text("joymigrate's tables refuse {names}", names=", ".join(refused))
    return None


def covers(dotted: str, known: set[str]) -> bool:
    """Whether a dotted name is a known class, or a member of one."""
    parts = dotted.split(".")[1:]
    classes = [number for number, part in enumerate(parts) if part in known]
    modules = parts[: classes[0]] if classes else parts
    return bool(classes) and all(part.islower() for part in modules)


def replacement(node: ast.Import | ast.ImportFrom, to: str, renamed: object) -> str:
    """The statement that binds the same names."""
    other = dict(renamed)  # type: ignore[call-overload]
    if isinstance(node, ast.Import):
        above, _, last = to.rpartition(".")
        return f"from {above} import {last} as {node.names[0].asname or PACKAGE}"
    parts = []
    for alias in node.names:
        name = other.get(alias.name, alias.name)
        bound = alias.asname or alias.name
        parts.append(name if name == bound else f"{name} as {bound}")
    return f"from {to} import {', '.join(parts)}"
