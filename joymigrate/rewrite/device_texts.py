"""String literals that name a device or a backend of the origin: their form, their place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from joymigrate.rewrite import flow_sinks
from joymigrate.rewrite.flow_sinks import BACKEND, DEVICE
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.option_calls import OPTION_CALLS

LITERAL = re.compile(
    r"(?P<prefix>[rRuUfF]{0,2})(?P<quote>'''|\"\"\"|'|\")(?P<body>.*)(?P=quote)$", re.S
)
# One field of `%` or of `str.format`: what stands for a card's number.
TEMPLATE = re.compile(r"%(?:\(\w+\))?\d*[dsiu]|\{[\w.\[\]]*(?:![rsa])?(?::\d*[ds]?)?\}")

# Functions of `re`, by the position of the text that is searched.
EXPRESSIONS = {
    "match": 1, "fullmatch": 1, "search": 1, "split": 1, "findall": 1, "finditer": 1, "sub": 2,
    "subn": 2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeviceText:
    """A string literal that names the origin. `whole` is the expression that a value flows as."""

    node: ast.expr
    whole: ast.expr
    value: str
    kind: str  # DEVICE or BACKEND
    rule: str
    body: tuple[int, int]  # span of the literal's content
    span: tuple[int, int]  # span of the literal with its quotes
    # exact, index, prefix, template, fstring, composite, tensor, backend, option, expression
    shape: str


def literals(module: Module) -> list[DeviceText]:
    """String literals that look like a device, a backend or a typed tensor of the origin."""
    if module.texts is None:
        module.texts = list(read_literals(module))
    return module.texts


def read_literals(module: Module) -> Iterator[DeviceText]:
    """The same, read from the tree."""
    for node, value in module.spoken:
        parent = getattr(node, "parent", None)
        if isinstance(parent, (ast.JoinedStr, ast.FormattedValue)):
            continue
        shape = shape_of(module, value)
        if shape is None and find_matched(parent, node) is not None:
            # `re.match(r"cuda:(\d+)", text)`
            named = re.match(rf"\^?{module.vocabulary.device}(?![\w-])", value)
            shape = "expression" if named else None
        if shape is not None:
            yield from describe_text(module, node, value, shape)
    for text in module.names.nodes[ast.JoinedStr]:
        first = text.values[0] if text.values else None
        head = first.value if isinstance(first, ast.Constant) else None
        if not isinstance(head, str):
            continue
        if len(text.values) == 1:  # `f"cuda"`: a text like any other
            shape = shape_of(module, head)
            if shape is not None:
                yield from describe_text(module, text, head, shape)
        elif head == f"{module.vocabulary.device}:":
            yield from describe_text(module, text, head, "fstring")


def shape_of(module: Module, value: str) -> str | None:
    """What form of device or backend string a value has, None for any other string."""
    words = module.vocabulary
    exact = words.exact_device.match(value)
    if exact:
        return "index" if exact.group(1) else "exact"
    if value in (words.backend, words.backend.upper()):  # torch takes both
        return "backend"
    if words.composite.match(value):
        return "composite"
    if words.typed_tensor.match(value):
        return "tensor"
    if value.startswith("--") and option_value(module, value) is not None:
        return "option"
    if words.device_prefix.match(value):
        return "prefix" if value == f"{words.device}:" else template_shape(value, words.device)
    return None


def find_matched(call: ast.AST | None, argument: ast.expr) -> ast.expr | None:
    """The text that an expression is matched with, or that is cut by its length.

    `re.match(r"cuda:(\\d+)", text)`, `text[len("cuda:"):]`; None for other calls.
    """
    if not isinstance(call, ast.Call):
        return None
    if isinstance(call.func, ast.Name) and call.func.id == "len":
        cut = getattr(call, "parent", None)
        whole = getattr(cut, "parent", None)
        sliced = isinstance(cut, ast.Slice) and isinstance(whole, ast.Subscript)
        return whole.value if sliced else None  # type: ignore[union-attr]
    if not isinstance(call.func, ast.Attribute) or getattr(call.func.value, "id", "") != "re":
        return None
    if call.func.attr == "compile" and argument is call.args[0]:
        return find_compiled(call)
    at = EXPRESSIONS.get(call.func.attr)
    return call.args[at] if at and argument is call.args[0] and at < len(call.args) else None


def find_compiled(call: ast.Call) -> ast.expr | None:
    """The text that the first use of `CARD = re.compile(…)` in the file is matched with."""
    assign = getattr(call, "parent", None)
    target = assign.targets[0] if isinstance(assign, ast.Assign) else None
    if not isinstance(target, ast.Name):
        return None
    top: ast.AST = call
    while getattr(top, "parent", None) is not None:
        top = top.parent  # type: ignore[attr-defined]
    for each in ast.walk(top):
        func = each.func if isinstance(each, ast.Call) else None
        if isinstance(func, ast.Attribute) and getattr(func.value, "id", "") == target.id:
            at = EXPRESSIONS.get(func.attr, 0) - 1
            if 0 <= at < len(each.args):  # type: ignore[attr-defined]
                text: ast.expr = each.args[at]  # type: ignore[attr-defined]
                return text
    return None


def option_value(module: Module, value: str) -> str | None:
    """What `--device=cuda:1`, a word of a command line, gives to an option; None for other text."""
    words = module.vocabulary
    name, equals, given = value[2:].partition("=")
    names = flow_sinks.load(words.device).names
    known = names.get(name.replace("-", "_")) if equals else None
    if known == DEVICE and words.exact_device.match(given):
        return given
    return given if known == BACKEND and given.lower() == words.backend else None


def option_before(node: ast.expr) -> str | None:
    """The option that a word of a command line belongs to: `["--device", "cuda"]`; else None."""
    outer = getattr(node, "parent", None)
    words = getattr(outer, "elts", None) or getattr(outer, "args", None)
    if not isinstance(words, list) or node not in words or words[0] is node:
        return None
    before = words[words.index(node) - 1]
    text = before.value if isinstance(before, ast.Constant) else None
    if not isinstance(text, str) or not text.startswith("--") or "=" in text:
        return None
    defines = getattr(getattr(outer, "func", None), "attr", "") in OPTION_CALLS
    return None if defines else text[2:].replace("-", "_")


def template_shape(value: str, device: str) -> str | None:
    """`cuda:%d` and `cuda:{:d}` are templates; other text after the colon is no device."""
    rest = value[len(device) + 1 :]
    # Any other text after the colon (`cuda://host`) is no device.
    return "template" if TEMPLATE.fullmatch(rest) else None


def describe_text(module: Module, node: ast.expr, value: str, shape: str) -> Iterator[DeviceText]:
    """The literal with the spans of its content; reported when it is written in pieces."""
    start, end = module.span(node)
    match = LITERAL.match(module.source.text[start:end])
    kind = BACKEND if shape in ("backend", "composite") else DEVICE
    rule = rule_of(node, shape)
    head = 0
    if shape == "option":
        head, value = value.index("=") + 1, value.partition("=")[2]
        if value.lower() == module.vocabulary.backend:
            kind, rule = BACKEND, "JM130"
    plain = match is not None and (
        match["body"].startswith(value) if shape == "fstring" else match["body"][head:] == value
    )
    if match is None or not plain:
        if kind == BACKEND or shape in ("exact", "index", "fstring"):
            # `"cuda:" "0"` or an escape: the value is a device, its text is not.
            yield DeviceText(node, node, value, kind, rule, (start, start), (start, end), "pieces")
        return
    at = start + match.start("body") + head
    body = (at, at + len(value))
    yield DeviceText(node, whole_of(node, shape), value, kind, rule, body, (start, end), shape)


def rule_of(node: ast.expr, shape: str) -> str:
    """The rule of a literal by its form."""
    if shape in ("backend", "composite"):
        return "JM130"
    if shape == "tensor":
        return "JM106"
    return "JM122" if shape in ("prefix", "template", "fstring") else "JM120"


def whole_of(node: ast.expr, shape: str) -> ast.expr:
    """The expression whose value flows on: `"cuda:" + x`, `"cuda:%d" % x`, `"…".format(x)`."""
    parent = getattr(node, "parent", None)
    if isinstance(parent, ast.BinOp) and parent.left is node:
        return parent
    if isinstance(parent, ast.Attribute) and parent.attr == "format":
        call = getattr(parent, "parent", None)
        if isinstance(call, ast.Call):
            return call
    return node


def device_literal(module: Module, node: ast.expr) -> bool:
    """Whether an expression starts as a device string of the origin."""
    if isinstance(node, ast.BinOp):
        return device_literal(module, node.left)
    if isinstance(node, ast.JoinedStr):
        return bool(node.values) and device_literal(module, node.values[0])
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, str) and shape_of(module, value) in (
        "exact",
        "index",
        "prefix",
        "template",
    )


def last_name(node: ast.expr) -> str:
    """The last name of a chain."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return node.id if isinstance(node, ast.Name) else ""


def inside_fstring(module: Module, node: ast.AST) -> bool:
    """Whether a literal stands in an f-string's braces, where quotes would clash."""
    return module.names.enclosing(node, (ast.JoinedStr,)) is not None
