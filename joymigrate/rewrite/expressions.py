"""Expressions of a file, the places in them that name the origin, and the guards above them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from joymigrate.rewrite.module import Module
from joymigrate.rewrite.option_calls import find_offered, offers

SIMPLE = (
    ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Raise, ast.Assert,
    ast.Delete,
)  # fmt: skip
# Functions that work without the device; torch keeps a seed until there is one.
WITHOUT_DEVICE = ("is_available", "device_count", "manual_seed", "manual_seed_all")


@dataclass(frozen=True, slots=True)
class OriginMention:
    """A place that names the origin. `hard`: it fails on a machine without the origin's device."""

    node: ast.AST
    start: int
    end: int
    hard: bool


@dataclass(slots=True)
class Expression:
    """One whole expression: a simple statement, a condition, a default, a decorator."""

    node: ast.AST
    start: int
    end: int


def expressions(module: Module) -> Iterator[Expression]:
    """The whole expressions of a module; they don't overlap."""
    nodes = module.names.nodes
    parts: list[ast.AST] = [node for kind in SIMPLE for node in nodes[kind]]
    parts += [node.test for kind in (ast.If, ast.While) for node in nodes[kind]]
    parts += [node.iter for kind in (ast.For, ast.AsyncFor) for node in nodes[kind]]
    parts += [node.context_expr for node in nodes[ast.withitem]]
    parts += [node.subject for node in nodes[ast.Match]]
    for kind in (ast.FunctionDef, ast.AsyncFunctionDef):
        for node in nodes[kind]:
            defaults = (*node.args.defaults, *node.args.kw_defaults)
            parts += [*node.decorator_list, *(each for each in defaults if each is not None)]
    for node in nodes[ast.ClassDef]:
        parts += [*node.decorator_list, *node.bases, *(each.value for each in node.keywords)]
    for part in parts:
        if isinstance(part, ast.Expr) and part.value in module.names.docstrings:
            continue
        yield Expression(part, *module.span(part))


def mentions(module: Module) -> Iterator[OriginMention]:
    """Places of a module that name the origin's device, for people's eyes left out."""
    from joymigrate.rewrite import conditions, device_places, device_texts, profiler
    from joymigrate.rewrite.codemods import card_properties

    words = module.vocabulary
    for top, dotted in module.names.imported_chains():
        inside = dotted == words.module or dotted.startswith(f"{words.module}.")
        inside = inside and spells_module(module, top)
        if inside and not isinstance(getattr(top, "ctx", None), ast.Store):
            works = dotted.rpartition(".")[2] in WITHOUT_DEVICE or dotted == words.module
            yield OriginMention(top, *module.span(top), hard=not works)
        elif dotted.startswith(f"torch._C._{words.device}"):
            yield OriginMention(top, *module.span(top), hard=True)
        elif (
            dotted.startswith((f"torch.version.{words.device}", f"torch._C._has_{words.device}"))
            or profiler.lacking(module, dotted)
            or conditions.of_library(module, dotted)
        ):
            yield OriginMention(top, *module.span(top), hard=False)
    for node in card_properties.architecture_fields(module):
        token = module.token(node)
        if token is not None:
            yield OriginMention(node, *token, hard=True)
    by_kind = any(f"{sign}gpu{sign}" in module.source.text for sign in "\"'") or (
        "accelerator=" in module.source.text
    )
    for kind in accelerators(module) if by_kind and module.by_kind else ():
        yield OriginMention(kind, *module.span(kind), hard=True)
    method, flag = (module.context.origin.tensor[key] for key in ("cuda", "is_cuda"))
    handle = f"{words.device}_stream"  # a stream's raw handle: no other device's stream has it
    for node in module.names.nodes[ast.Attribute]:
        if node.attr == handle:
            token = module.token(node)
            if token is not None:
                yield OriginMention(node, *token, hard=True)
            continue
        if node.attr not in (method, flag) or module.names.dotted(node) is not None:
            continue
        if node in module.handled:
            continue
        token = module.token(node)
        called = isinstance(getattr(node, "parent", None), ast.Call) and node.parent.func is node
        if token is not None and (called or node.attr == flag):
            yield OriginMention(node, *token, hard=called and node.attr == method)
    for text in device_texts.literals(module):
        parent = getattr(text.whole, "parent", None)
        if text.node in module.handled or device_places.annotation(text.node):
            continue
        held = find_offered(text.whole)
        if held is not None and offers(held, words.string(text.value)):
            continue  # an option that allows both
        if device_places.special_place(module, text, parent) != "silent":
            yield OriginMention(text.node, *text.span, hard=False)


def accelerators(module: Module) -> Iterator[ast.Constant]:
    """Texts that name an accelerator of Lightning's, which knows none of a chip.

    What it is asked for stays, with its conditions: `Trainer(accelerator="cuda")`, and "gpu", which
    is no device of torch's, where it is a value: `return "gpu" if …`.
    """
    for node in module.names.nodes[ast.Constant]:
        if node.value not in ("gpu", module.vocabulary.device):
            continue
        parent = getattr(node, "parent", None)
        if isinstance(parent, ast.keyword):
            named = parent.arg == "accelerator"
        elif isinstance(parent, ast.Dict):
            names = [
                key for key, value in zip(parent.keys, parent.values, strict=True) if value is node
            ]
            named = any(getattr(key, "value", None) == "accelerator" for key in names)
        else:
            chosen = isinstance(parent, ast.IfExp) and node is not parent.test
            kept = isinstance(parent, (ast.Return, ast.Assign, ast.AnnAssign))
            named = node.value == "gpu" and (chosen or kept)
        if named:
            yield node


def spells_module(module: Module, node: ast.expr) -> bool:
    """Whether a chain spells the origin's module out; an alias is moved where it is bound."""
    while isinstance(node, ast.Attribute):
        if module.names.dotted(node) == module.vocabulary.module:
            return True
        node = node.value
    return False


def decisive(mention: OriginMention) -> bool:
    """Whether a place decides what runs: a question for the platform, or a comparison."""
    if not isinstance(mention.node, ast.Constant):
        return True
    return isinstance(getattr(mention.node, "parent", None), ast.Compare)


def calls_around(node: ast.AST) -> Iterator[ast.Call]:
    """Calls that a node stands in, inside of its statement, from the inside."""
    at: ast.AST | None = node
    while at is not None and not isinstance(at, ast.stmt):
        if isinstance(at, ast.Call):
            yield at
        at = getattr(at, "parent", None)


def is_caught(node: ast.AST) -> bool:
    """Whether a failure at a node is caught: it stands in a `try` with handlers."""
    child, parent = node, getattr(node, "parent", None)
    while parent is not None:
        if isinstance(parent, ast.Try) and child in parent.body and parent.handlers:
            return True
        child, parent = parent, getattr(parent, "parent", None)
    return False


def called_name(call: ast.AST | None) -> str:
    """The last name of what is called; empty for what is no call."""
    func = getattr(call, "func", None)
    return str(getattr(func, "attr", getattr(func, "id", "")))
