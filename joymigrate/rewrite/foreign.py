"""Code that is not ours to touch: shims of other vendors, monkey patches, branches of back ends."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

from joymigrate.chips import all_chips
from joymigrate.language import Text
from joymigrate.model import Style
from joymigrate.rewrite.device_places import compared_with
from joymigrate.rewrite.guards import negative
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.own_kernels import base_of_library

# Back ends that are no chip of ours but that programs have branches for.
OTHERS = ("xpu", "hpu", "mps", "xla", "hip", "tpu", "cpu")
PATCHED = "a name of torch is replaced here; decide what that means on the target"
FOREIGN = "in a branch for {backend}"
ASKED = "its value is asked for `{name}` as well, which torch's portable word may mean"
SERVES = "it serves {name}, which is made for the origin"
RESERVED = "{place} serves one device alone, as others beside it serve other back ends"


def parts(module: Module) -> Iterator[tuple[ast.AST, str]]:
    """Code that stays as it is, with the reason: statements, names, or the whole module."""
    yield from patches(module)
    yield from branches(module)
    for owner in module.names.nodes[ast.ClassDef]:
        base = base_of_library(module, owner)
        if base is not None:
            yield owner, Text(SERVES, name=base)


def patches(module: Module) -> Iterator[tuple[ast.AST, str]]:
    """Assignments to names of torch, and the uses of those names.

    All of a file that also speaks of another back end: its functions serve that vendor's shim.
    """
    device = re.escape(module.vocabulary.device)
    ours = re.compile(rf"torch\.(?!backends\b).*\b(is_)?{device}\b")
    nodes = module.names.nodes
    replaced = set()
    for node in (*nodes[ast.Assign], *nodes[ast.AugAssign]):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            dotted = module.names.dotted(target) if isinstance(target, ast.Attribute) else None
            if dotted and ours.match(dotted):
                yield node, Text(PATCHED)
                replaced.add(dotted)
    if not replaced:
        return
    if names_of_others(module).search(module.source.text):
        yield module.tree, Text(PATCHED)
        return
    for top, dotted in module.names.imported_chains():
        if any(dotted == each or dotted.startswith(f"{each}.") for each in replaced):
            yield top, Text(PATCHED)


def branches(module: Module) -> Iterator[tuple[ast.AST, str]]:
    """What stands in a branch of another back end."""
    pattern = names_of_others(module)
    origin = re.compile(re.escape(module.vocabulary.device), re.I)
    for node in module.names.nodes[ast.If]:
        test = module.text(node.test)
        named = pattern.search(test)
        if named is None or origin.search(test) or negative(node.test):
            continue
        for each in node.body:
            yield each, because_of(named)


def questions(module: Module) -> Iterator[tuple[ast.AST, str]]:
    """Conditions that ask for another back end as well: `is_available() and torch.version.hip`.

    Not what stands beside them: `(torch.xpu.is_available() and xpu) or torch.cuda.is_available()`.
    """
    pattern = names_of_others(module)
    origin = re.compile(re.escape(module.vocabulary.device), re.I)
    for both in module.names.nodes[ast.BoolOp]:
        above = getattr(both, "parent", None)
        beside = isinstance(above, ast.BoolOp) and isinstance(above.op, ast.Or)
        if beside and not origin.search(module.text(both)):
            continue
        for part in both.values if isinstance(both.op, ast.And) else ():
            text = module.text(part)
            named = pattern.search(text)
            if named and not (origin.search(text) or negative(part) or text.endswith("is None")):
                yield both, because_of(named)


def because_of(named: re.Match[str]) -> str:
    """The reason of a place that a back end's name decides about."""
    return Text(FOREIGN, backend=next(filter(None, named.groups())).lower())


def elsewhere(module: Module, node: ast.AST) -> bool:
    """Whether a node stands in the branch of another back end."""
    pattern = names_of_others(module)
    child, parent = node, getattr(node, "parent", None)
    while parent is not None:
        tests = [each for each in getattr(parent, "decorator_list", ()) if each is not child]
        tests += [parent.test] if isinstance(parent, ast.If) and child in parent.body else []
        texts = (module.text(test) for test in tests if not negative(test))
        if any(pattern.search(t) and module.vocabulary.device not in t for t in texts):
            return True
        child, parent = parent, getattr(parent, "parent", None)
    return False


def names_of_others(module: Module) -> re.Pattern[str]:
    """Names of other back ends than those of a module's move."""
    return foreign_words(module.vocabulary.device, module.vocabulary.to_device)


def refuse_portable(module: Module, value: ast.expr) -> Text | None:
    """Why torch's portable word can't stand for the origin's in a question for a value: the file
    asks the same value for another back end, `device == "mps"` or `x.is_mps`."""
    if module.context.style is not Style.ACCELERATOR:
        return None
    asked = module.text(value)
    names = find_others(module.vocabulary.device, module.vocabulary.to_device)
    flags = (each for each in module.names.nodes[ast.Attribute] if each.attr[:3] == "is_")
    found = [f.attr for f in flags if f.attr[3:] in names and module.text(f.value) == asked]
    for node in module.names.nodes[ast.Constant]:
        if isinstance(node.value, str) and node.value.partition(":")[0] in names:
            other = compared_with(node)
            found += [node.value] if other is not None and module.text(other) == asked else []
    return Text(ASKED, name=found[0]) if found else None


@functools.cache
def find_others(origin: str, target: str) -> frozenset[str]:
    """Names of the devices of other back ends than those of a move, without the host."""
    names = {name for chip in all_chips().values() for name in (chip.device, *chip.aliases)}
    return frozenset((names | set(OTHERS)) - {origin, target, "cpu", "gpu"})


@functools.cache
def foreign_words(origin: str, target: str) -> re.Pattern[str]:
    """Names of other back ends in a condition."""
    names = find_others(origin, target)
    listed = "|".join(sorted(map(re.escape, names)))
    return re.compile(
        rf"\b(?:is_|has_|use_)(?:torch_)?({listed})(?:_available)?\b"
        rf"|torch\.({listed})\b|torch\.version\.({listed})\b|[\"']({listed})[\"':]|\bis_({listed})\b"
    )
