"""A literal that names the device or the backend, as an expression of torch's."""

from __future__ import annotations

import ast
import re

from joymigrate.model import Finding, Tier
from joymigrate.rewrite.device_places import annotation, is_member, mixed_precision
from joymigrate.rewrite.device_texts import DeviceText as Literal
from joymigrate.rewrite.device_texts import inside_fstring
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.portable.names import ask_enabled
from joymigrate.rewrite.portable.words import (
    backend,
    current,
    host,
    kind,
    own_device,
    place,
    stands_free,
    there,
    torch_at,
    word,
)


def literal(module: Module, text: Literal, rule: str, compare: bool) -> Finding:
    """A literal that names the device or the backend, as an expression of torch's."""
    torch, needs = torch_at(module, text.node)
    span = text.span
    edits = spell(module, text, torch, compare)
    if not edits:
        return module.find(rule, span, tier=Tier.REPORT, reason="a call can't stand here")
    return module.find(rule, span, edits=edits, needs=needs)


def spell(
    module: Module, text: Literal, torch: str, compare: bool
) -> list[tuple[int, int, str]] | None:
    """The edits of a literal; None where no expression can stand or say the same."""
    node = text.whole
    parent = getattr(node, "parent", None)
    fixed = text.shape not in ("fstring",) and (
        inside_fstring(module, text.node) or annotation(text.node)
    )
    if (
        fixed
        or isinstance(getattr(text.node, "parent", None), ast.MatchValue)
        or is_member(module, node)
    ):
        return None
    device = current(torch)
    behind = text.value[len(module.vocabulary.device) :]
    if text.shape == "fstring":
        at = text.body[0]
        return [(at, at + len(module.vocabulary.device), f"{{{device}}}")]
    if text.shape == "backend" and not text.value.isupper():
        return [(*text.span, backend(module, node, compare))]
    if text.shape == "composite" and not compare:
        words = module.vocabulary
        named = f"{torch}.distributed.get_default_backend_for_device({device})"
        parts = {words.device: f"{{{device}}}", words.backend: f"{{{named}}}"}
        pattern = rf"\b(?:{words.device}|{words.backend})\b"
        written = re.sub(pattern, lambda match: parts[match[0]], text.value)
        return [(*text.span, f'f"{written}"')]
    if text.shape == "index" and not compare and not there(module, node):
        return [(*text.span, f"f\"{{{device} or 'cpu'}}{behind}\"")]
    if text.shape in ("index", "prefix") or (text.shape == "template" and "{" not in text.value):
        return [(*text.span, f'f"{{{device}}}{behind}"')]
    if text.shape == "template":
        return [(*text.span, f'({word(torch)} + "{behind}")')]
    if text.shape != "exact":
        return None
    if mixed_precision(module, text):
        call = module.names.enclosing(node, (ast.Call,))
        name = (module.names.dotted(call.func) or "").rpartition(".")[2]
        more = ask_enabled(module, call, None, torch) if name in ("autocast", "GradScaler") else []
        return [(*text.span, kind(module, node)), *more]
    made = is_device(module, parent)
    if compare:
        return None if made else [(*text.span, word(torch))]
    if made:
        assert isinstance(parent, ast.Call)
        own = own_device(module, node)
        if stands_free(parent):
            return [
                (*module.span(parent), place(module, parent) if own is None else whole(own, torch))
            ]
        return [(*text.span, place(module, node))]
    outer = getattr(parent, "parent", None)
    if isinstance(parent, ast.IfExp) and node is parent.body and there(module, node):
        if is_device(module, outer) and stands_free(outer) and is_cpu(parent.orelse):
            start, end = module.span(outer)  # type: ignore[arg-type]
            left, _ = module.span(parent.orelse)
            return [(start, text.span[0], ""), (*text.span, device), (left, end, host(torch))]
        return [(*text.span, device if is_device(module, outer) else f"{device}.type")]
    if takes_device(module, text):
        return [(*text.span, place(module, node))]
    return [(*text.span, kind(module, node))]


def whole(own: tuple[str, bool], torch: str) -> str:
    """The program's own device as a `torch.device`."""
    return f"{torch}.device({own[0]})" if own[1] else own[0]


def is_device(module: Module, node: ast.AST | None) -> bool:
    """Whether a node is `torch.device(…)` of one argument."""
    one = isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords
    return one and module.names.dotted(node.func) == "torch.device"  # type: ignore[union-attr]


def is_cpu(node: ast.expr) -> bool:
    """Whether a literal names the host."""
    return isinstance(node, ast.Constant) and node.value == "cpu"


def takes_device(module: Module, text: Literal) -> bool:
    """Whether a literal is an argument where torch takes a `torch.device` as well as its name."""
    parent = getattr(text.whole, "parent", None)
    call = getattr(parent, "parent", None) if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call):
        return False
    dotted = module.names.dotted(call.func)
    if isinstance(parent, ast.keyword):
        known = dotted is not None and dotted.startswith("torch.")
        return known and parent.arg in ("device", "map_location")
    if dotted is not None:
        return dotted in ("torch.load", "torch.Generator", "torch.set_default_device")
    return isinstance(call.func, ast.Attribute) and call.func.attr == "to"
