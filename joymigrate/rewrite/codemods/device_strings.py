"""Device and backend strings: `"cuda:0"`, `f"cuda:{i}"`, `"nccl"`, `"cpu:gloo,cuda:nccl"`, ….

A string is rewritten when it is seen to reach a device (see `flow`), in the file or, through
another file of the project, after the question was answered there. Otherwise it is reported with
the reason, and where it plainly is something else it is left alone in silence.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from joymigrate import language
from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite import guards, own_kernels
from joymigrate.rewrite.codemods.device_names import need
from joymigrate.rewrite.flow import SINK
from joymigrate.rewrite.flow_sinks import BACKEND, DEVICE
from joymigrate.rewrite.module import Module, Pending

LITERAL = re.compile(
    r"(?P<prefix>[rRuUfF]{0,2})(?P<quote>'''|\"\"\"|'|\")(?P<body>.*)(?P=quote)$", re.S
)
# One field of `%` or of `str.format`: what stands for a card's number.
TEMPLATE = re.compile(r"%(?:\(\w+\))?\d*[dsiu]|\{[\w.\[\]]*(?:![rsa])?(?::\d*[ds]?)?\}")
STRING_METHODS = {
    "startswith", "endswith", "replace", "split", "rsplit", "partition", "rpartition", "find",
    "index", "count", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix",
}  # fmt: skip
ATTRIBUTE_FUNCTIONS = ("getattr", "hasattr", "setattr", "delattr")
TALK = {
    "print", "warn", "warning", "info", "debug", "error", "critical", "exception", "log", "skip",
    "skipif", "fail", "write", "add_argument_group", "ValueError", "RuntimeError", "TypeError",
    "Exception", "AssertionError", "NotImplementedError", "KeyError", "ImportError", "echo",
}  # fmt: skip
# Keywords of options whose value is shown to people.
SHOWN = {
    "help",
    "description",
    "desc",
    "metavar",
    "title",
    "msg",
    "message",
    "epilog",
    "label",
    "reason",
}
ANNOTATED = "a type annotation"
UNPROVEN = "not seen to reach a device: {why}"


@dataclass(frozen=True, slots=True)
class Text:
    """A string literal that names the origin. `whole` is the expression that a value flows as."""

    node: ast.expr
    whole: ast.expr
    value: str
    kind: str  # DEVICE or BACKEND
    rule: str
    body: tuple[int, int]  # span of the literal's content
    span: tuple[int, int]  # span of the literal with its quotes
    shape: str  # exact, index, prefix, template, fstring, composite, tensor, backend


def find(module: Module) -> Iterator[Finding | Pending]:
    """Findings for every string literal that may name the origin's device or backend."""
    if module.vocabulary.same_device:
        return
    found = [item for text in literals(module) for item in judge(module, text)]
    yield from (with_values(module, item) for item in found)


def with_values(module: Module, item: Finding | Pending) -> Finding | Pending:
    """A doubt as a fix, where its value is one that elsewhere in the file is seen to be a device.

    A value and every comparison with it are one group: both move.
    """
    no = item.no if isinstance(item, Pending) else item
    keys, kind, yes = module.doubts.get((no.line, no.column), (frozenset(), "", None))
    if yes is None or no.edits or no.rule not in ("JM121", "JM111", yes.rule):
        return item
    return yes if keys & connected(module, kind) else item


def connected(module: Module, kind: str) -> set[str]:
    """Keys of the file that share values with what is seen to be of a kind."""
    known = module.closure.get(kind)
    if known is None:
        known = module.flow.connected(module.proven.get(kind, ()))
        module.closure[kind] = known
    return known


# -- what a literal is -------------------------------------------------------------------------


def literals(module: Module) -> Iterator[Text]:
    """String literals that look like a device, a backend or a typed tensor of the origin."""
    for node in module.names.nodes[ast.Constant]:
        if not isinstance(node.value, str) or node in module.names.docstrings:
            continue
        parent = getattr(node, "parent", None)
        if isinstance(parent, (ast.JoinedStr, ast.FormattedValue)):
            continue
        shape = shape_of(module, node.value)
        if shape is not None:
            yield from described(module, node, node.value, shape)
    for node in module.names.nodes[ast.JoinedStr]:
        first = node.values[0] if node.values else None
        value = first.value if isinstance(first, ast.Constant) else None
        if isinstance(value, str) and value == f"{module.vocabulary.device}:":
            yield from described(module, node, value, "fstring")


def shape_of(module: Module, value: str) -> str | None:
    """What form of device or backend string a value has, None for any other string."""
    words = module.vocabulary
    exact = words.exact_device.match(value)
    if exact:
        return "index" if exact.group(1) else "exact"
    if value == words.backend:
        return "backend"
    if words.composite.match(value):
        return "composite"
    if words.typed_tensor.match(value):
        return "tensor"
    if words.device_prefix.match(value):
        return "prefix" if value == f"{words.device}:" else template_shape(value, words.device)
    return None


def template_shape(value: str, device: str) -> str | None:
    """`cuda:%d` and `cuda:{:d}` are templates; other text after the colon is no device."""
    rest = value[len(device) + 1 :]
    # Any other text after the colon (`cuda://host`) is no device.
    return "template" if TEMPLATE.fullmatch(rest) else None


def described(module: Module, node: ast.expr, value: str, shape: str) -> Iterator[Text]:
    """The literal with the spans of its content; reported when it is written in pieces."""
    start, end = module.span(node)
    match = LITERAL.match(module.source.text[start:end])
    kind = BACKEND if shape in ("backend", "composite") else DEVICE
    rule = rule_of(node, shape)
    plain = match is not None and (
        match["body"].startswith(value) if shape == "fstring" else match["body"] == value
    )
    if match is None or not plain:
        if kind == BACKEND or shape in ("exact", "index", "fstring"):
            # `"cuda:" "0"` or an escape: the value is a device, its text is not.
            yield Text(node, node, value, kind, rule, (start, start), (start, end), "pieces")
        return
    body = (start + match.start("body"), start + match.start("body") + len(value))
    yield Text(node, whole_of(node, shape), value, kind, rule, body, (start, end), shape)


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


# -- where it goes -----------------------------------------------------------------------------


def judge(module: Module, text: Text) -> Iterator[Finding | Pending]:
    """Rewrite, report, leave to another file, or pass over one literal."""
    node, parent = text.node, getattr(text.whole, "parent", None)
    if guards.listed(module, text.whole):
        return
    guard = module.guarded(node)
    if guard is not None:
        yield report(module, text, guard)
        return
    if text.shape == "pieces":
        if special_place(module, text, parent) != "silent":
            yield report(module, text, "written in pieces")
        return
    if text.shape == "tensor":
        yield from typed_tensor(module, text)
        return
    compared = compared_with(text.whole)
    if compared is not None:
        yield from comparison(module, text, compared)
        return
    if isinstance(parent, ast.Dict) and text.whole in parent.keys and device_map(module, parent):
        yield fix(module, text, text.rule)
        return
    special = special_place(module, text, parent)
    if special == "silent":
        return
    if special == ANNOTATED and module.context.style is Style.DIRECT and fitting(module, text):
        yield fix(module, text, text.rule)
        return
    if special is not None:
        rule = text.rule if special == ANNOTATED else "JM123"
        yield report(module, text, special, "JM900" if "attribute" in special else rule)
        return
    if module.context.style is Style.SHIM and text.shape != "composite":
        return
    if where_available(module, text.whole):
        yield sent(module, text, fix(module, text, "JM121" if text.rule == "JM120" else text.rule))
        return
    targets = module.flow.literals.get(node, set())
    kinds, outside = module.flow.reach(targets)
    if text.kind in kinds:
        direct = any(target == SINK + text.kind for target in targets)
        rule = "JM121" if text.rule == "JM120" and not direct else text.rule
        yield sent(module, text, fix(module, text, rule))
        return
    doubt = report(module, text, language.Text(UNPROVEN, why=why(module, text, targets)), "JM121")
    yes = sent(module, text, fix(module, text, "JM121"), proven=False)
    module.doubts[doubt.line, doubt.column] = (frozenset(targets), text.kind, yes)
    if outside:
        yield Pending(yes, doubt, frozenset(outside), text.kind)
        return
    yield doubt


def sent(module: Module, text: Text, fixed: Finding, *, proven: bool = True) -> Finding:
    """The rewritten literal, with a note of the keys that take its value to other files."""
    targets = module.flow.literals.get(text.node, set())
    if proven:
        module.proven.setdefault(text.kind, set()).update(targets)
    _, outside = module.flow.reach(targets)
    if outside:
        module.sent[fixed.line, fixed.column] = (text.kind, frozenset(outside))
    return fixed


def where_available(module: Module, node: ast.expr) -> bool:
    """Whether a literal is the value where the origin's device is there to be used.

    `"cuda" if torch.cuda.is_available() else "cpu"`, and the same as a statement.
    """
    parent: ast.AST | None = getattr(node, "parent", None)
    if isinstance(parent, ast.IfExp):
        denied = isinstance(parent.test, ast.UnaryOp) and isinstance(parent.test.op, ast.Not)
        test = parent.test.operand if denied else parent.test  # type: ignore[attr-defined]
        return node is (parent.orelse if denied else parent.body) and asks(module, test)
    if not isinstance(parent, (ast.Assign, ast.AnnAssign, ast.Return)):
        return False
    block = getattr(parent, "parent", None)
    return isinstance(block, ast.If) and parent in block.body and asks(module, block.test)


def asks(module: Module, test: ast.expr, depth: int = 0) -> bool:
    """Whether a condition is the question if the origin's device is available."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    return any(question(module, part, depth) for part in parts)


def question(module: Module, part: ast.expr, depth: int) -> bool:
    """The question itself, a function of the project that asks it, or a variable with the answer.

    At most three steps are followed.
    """
    platform = module.vocabulary.module
    if isinstance(part, ast.Compare) and len(part.comparators) == 1:
        more = isinstance(part.ops[0], (ast.Gt, ast.GtE, ast.NotEq))
        counted = isinstance(part.left, ast.Call) and module.names.dotted(part.left.func)
        return more and counted == f"{platform}.device_count"
    if isinstance(part, ast.Call):
        dotted = module.names.dotted(part.func)
        if dotted == f"{platform}.is_available":
            return True
        if dotted is not None:
            last = dotted.rpartition(".")[2]
            named = re.fullmatch(rf"_?(is_|has_)?{module.vocabulary.device}_?(is_)?available", last)
            return named is not None and module.project.locate(dotted) is not None
    if depth > 2 or not isinstance(part, (ast.Name, ast.Call)):
        return False
    name = part if isinstance(part, ast.Name) else part.func
    found = module.names.lookup(name.id, name) if isinstance(name, ast.Name) else None
    if found is None or len(found[1]) != 1:
        return False
    binding = found[1][0]
    if isinstance(part, ast.Name):
        return (
            binding.kind == "assign"
            and binding.value is not None
            and asks(module, binding.value, depth + 1)
        )
    body = getattr(binding.node, "body", None) if binding.kind == "function" else None
    last_one = body[-1] if isinstance(body, list) else None
    return (
        isinstance(last_one, ast.Return)
        and last_one.value is not None
        and asks(module, last_one.value, depth + 1)
    )


def why(module: Module, text: Text, targets: set[str]) -> str:
    """One phrase on where an unproven literal goes."""
    if targets:
        names = sorted(re.split(r"[#.:]", key)[-1].rstrip("()") for key in targets)
        return language.Text("it is kept in {names}", names=", ".join(dict.fromkeys(names)))
    parent = getattr(text.whole, "parent", None)
    if isinstance(parent, ast.Call):
        return language.Text("it is passed to {call}()", call=short(module, parent.func))
    if isinstance(parent, ast.keyword):
        return language.Text("it is passed as {arg}=", arg=parent.arg)
    return language.Text("it stands in a {kind}", kind=type(parent).__name__.lower())


def short(module: Module, node: ast.expr) -> str:
    """A callee's text, shortened."""
    found = " ".join(module.text(node).split())
    return found if len(found) <= 40 else "…" + found[-39:]


def special_place(module: Module, text: Text, parent: ast.AST | None) -> str | None:
    """`silent` for text and the like, a reason for places never rewritten, None for the rest."""
    node = text.whole
    if isinstance(parent, ast.Dict) and node in parent.keys:
        return "a dictionary key, perhaps of saved files"
    if isinstance(parent, ast.Subscript) and parent.slice is node:
        if annotation(node):
            return ANNOTATED
        return "a dictionary key, perhaps of saved files"
    if isinstance(parent, (ast.Expr, ast.FormattedValue)):
        return "silent"
    if isinstance(parent, ast.keyword) and parent.arg in SHOWN:
        return "silent"
    if isinstance(parent, ast.Assert) and node is parent.msg:
        return "silent"
    if isinstance(parent, ast.Call):
        name = getattr(parent.func, "attr", getattr(parent.func, "id", ""))
        if name in TALK:
            return "silent"
        if name in ATTRIBUTE_FUNCTIONS and node in parent.args[:2]:
            return attribute_place(module, parent)
    if isinstance(parent, ast.Tuple) and annotation(node):
        return ANNOTATED
    return None


def attribute_place(module: Module, call: ast.Call) -> str:
    """`getattr(torch, "cuda")` is a site; the same of another object is not."""
    dotted = module.names.dotted(call.args[0]) if call.args else None
    if dotted is not None and dotted.split(".")[0] == "torch":
        return "an attribute looked up by name"
    return "silent"


def annotation(node: ast.AST) -> bool:
    """Whether a literal stands in a type annotation (`Literal["cuda", "cpu"]`)."""
    child, parent = node, getattr(node, "parent", None)
    while isinstance(parent, (ast.Subscript, ast.Tuple, ast.BinOp)):
        child, parent = parent, getattr(parent, "parent", None)
    if isinstance(parent, (ast.arg, ast.AnnAssign)):
        return child is parent.annotation
    return isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and child is parent.returns


def fitting(module: Module, text: Text) -> bool:
    """Whether the parameter or attribute of an annotation is of this kind by its name."""
    owner = module.names.enclosing(text.node, (ast.arg, ast.AnnAssign))
    name = getattr(owner, "arg", None) or last_name(getattr(owner, "target", text.node))
    return module.flow.sinks.names.get(name) == text.kind


def device_map(module: Module, node: ast.Dict) -> bool:
    """Whether a dictionary leads from devices to devices (`map_location={"cuda:0": "cuda:1"}`)."""
    parent = getattr(node, "parent", None)
    if isinstance(parent, ast.keyword) and parent.arg == "map_location":
        return True
    if not all(key is not None and device_literal(module, key) for key in node.keys):
        return False
    targets: set[str] = set()
    for value in node.values:
        for leaf in module.flow.leaves(value):
            if not isinstance(leaf, str) and device_literal(module, leaf):
                targets |= module.flow.literals.get(leaf, set())
    kinds, _ = module.flow.reach(targets)
    return DEVICE in kinds


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


# -- comparisons -------------------------------------------------------------------------------


def compared_with(node: ast.expr) -> ast.expr | None:
    """The other operand when a literal is compared, searched for, or matched; else None."""
    parent = getattr(node, "parent", None)
    if isinstance(parent, (ast.Tuple, ast.List, ast.Set)):
        outer = getattr(parent, "parent", None)
        if isinstance(outer, ast.Compare) and parent in outer.comparators:
            return outer.left
        if isinstance(parent, ast.Tuple) and isinstance(outer, ast.Call):
            return searched(outer, parent)
        return None
    if isinstance(parent, (ast.SetComp, ast.ListComp, ast.GeneratorExp)) and node is parent.elt:
        outer = getattr(parent, "parent", None)
        if isinstance(outer, ast.Compare) and parent in outer.comparators:
            return outer.left  # `device in {f"cuda:{i}" for i in range(n)}`
        return None
    if isinstance(parent, ast.Compare):
        operands = [parent.left, *parent.comparators]
        others = [operand for operand in operands if operand is not node]
        return others[0] if others else None
    if isinstance(parent, ast.Call):
        return searched(parent, node)
    if isinstance(parent, ast.MatchValue):
        case: ast.AST | None = parent
        while case is not None and not isinstance(case, ast.Match):
            case = getattr(case, "parent", None)
        return case.subject if case is not None else None
    return None


def searched(call: ast.Call, argument: ast.expr) -> ast.expr | None:
    """The string whose method (`x.startswith(…)`) takes `argument`; None for other calls."""
    method = isinstance(call.func, ast.Attribute) and call.func.attr in STRING_METHODS
    return call.func.value if method and argument in call.args[:1] else None  # type: ignore[attr-defined]


def comparison(module: Module, text: Text, other: ast.expr) -> Iterator[Finding | Pending]:
    """A literal that a value is compared with: rewritten when that value is a device."""
    flow = module.flow
    if module.context.style is Style.SHIM and not real(module, other, text.kind):
        return  # the program's own strings keep the origin's words
    kernel = own_kernels.decides(module, text.node, tensor=True) if text.kind == DEVICE else None
    if kernel is not None:
        yield report(module, text, kernel, "JM111")
        return
    if evident(module, other, text.kind):
        yield fix(module, text, "JM111" if text.kind == DEVICE else text.rule, compare=True)
        return
    keys = {leaf for leaf in flow.leaves(other) if isinstance(leaf, str)}
    kinds, outside = flow.reach(keys)
    if text.kind in kinds:
        module.proven.setdefault(text.kind, set()).update(keys)
        yield fix(module, text, "JM111" if text.kind == DEVICE else text.rule, compare=True)
        return
    rule = "JM111" if text.kind == DEVICE else text.rule
    doubt = report(
        module,
        text,
        language.Text(
            "compared with {other}, not seen to be a {kind}",
            other=short(module, other),
            kind=text.kind,
        ),
        rule,
    )
    yes = fix(module, text, rule, compare=True)
    module.doubts[doubt.line, doubt.column] = (frozenset(keys), text.kind, yes)
    waiting = Pending(
        yes, doubt, frozenset(outside), text.kind, frozenset(flow.sources(keys) if keys else ())
    )
    if waiting.sources:
        module.watched.append(waiting)
    yield waiting if outside else doubt


def evident(module: Module, other: ast.expr, kind: str) -> bool:
    """Whether an expression is a device (or a backend) by its own form or name."""
    flow = module.flow
    if kind == BACKEND:
        if isinstance(other, ast.Call):
            callee = module.names.dotted(other.func)
            if callee in flow.sinks.backend_calls:
                return True
            if isinstance(other.func, ast.Attribute) and other.func.attr == "lower":
                return evident(module, other.func.value, kind)
        return flow.sinks.names.get(last_name(other)) == BACKEND
    if flow.is_device(other):
        return True
    if isinstance(other, ast.Call) and getattr(other.func, "id", "") == "str" and other.args:
        return evident(module, other.args[0], kind)
    if isinstance(other, ast.Subscript) and isinstance(other.slice, ast.Slice):
        # `device[:4]` is compared with as many letters; another name may have more.
        return False
    if isinstance(other, ast.Call) and isinstance(other.func, ast.Attribute):
        return evident(module, other.func.value, kind)
    if isinstance(other, ast.Attribute) and other.attr == "type":
        return "dev" in last_name(other.value).lower()
    return flow.sinks.names.get(last_name(other)) == DEVICE


def real(module: Module, other: ast.expr, kind: str) -> bool:
    """Whether an expression comes from torch itself, so that it speaks of the target."""
    if kind == BACKEND:
        return isinstance(other, ast.Call) and evident(module, other, kind)
    if isinstance(other, ast.Call) and getattr(other.func, "id", "") == "str" and other.args:
        return real(module, other.args[0], kind)
    return isinstance(other, ast.Attribute) and module.flow.is_device(other)


def last_name(node: ast.expr) -> str:
    """The last name of a chain."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return node.id if isinstance(node, ast.Name) else ""


# -- what is written ---------------------------------------------------------------------------


def report(module: Module, text: Text, reason: str, rule: str | None = None) -> Finding:
    """A literal that stays, with the reason."""
    return module.find(rule or text.rule, text.span, tier=Tier.REPORT, reason=reason)


def fix(module: Module, text: Text, rule: str, *, compare: bool = False) -> Finding:
    """The literal in the target's words, in the style of the scan."""
    words = module.vocabulary
    start, _ = text.body
    if module.context.style is Style.AGNOSTIC:
        return agnostic(module, text, rule, compare)
    edits = [
        (start + m.start(), start + m.end(), words.string(m.group()))
        for m in re.finditer(rf"\b({words.device}|{words.backend})\b", text.value)
    ]
    return module.find(rule, text.span, edits=edits, needs=need(module))


def agnostic(module: Module, text: Text, rule: str, compare: bool) -> Finding:
    """The helper's expression for a literal."""
    words, jm = module.vocabulary, module.helper
    compare = compare or mixed_precision(module, text) or choice(text)
    device = f"{jm}.accelerator()" if compare else f"{jm}.device_type()"
    if isinstance(getattr(text.node, "parent", None), ast.MatchValue):
        return report(module, text, "a pattern takes no call; compare before the match", rule)
    if inside_fstring(module, text.node) or annotation(text.node):
        return report(module, text, "a call can't stand here", rule)
    start, end = text.span
    if text.shape == "exact":
        written = device
    elif text.shape == "index":
        index = text.value[len(words.device) + 1 :]
        written = f'f"{{{device}}}:{index}"' if compare else f"{jm}.device({index})"
    elif text.shape == "backend":
        written = f"{jm}.accelerator_backend()" if compare else f"{jm}.dist_backend()"
    elif text.shape == "composite":
        if compare or text.value != f"cpu:gloo,{words.device}:{words.backend}":
            return report(module, text, "no helper form of this combination", rule)
        written = f"{jm}.dist_backend(with_cpu=True)"
    elif text.shape == "fstring":
        at = text.body[0]
        edits = [(at, at + len(words.device), f"{{{device}}}")]
        return module.find(rule, text.span, edits=edits, needs="helper")
    elif text.shape == "template" and "{" in text.value:
        written = f'({device} + "{text.value[len(words.device) :]}")'
    else:
        written = f'f"{{{device}}}{text.value[len(words.device) :]}"'
    return module.find(rule, text.span, edits=[(start, end, written)], needs="helper")


def mixed_precision(module: Module, text: Text) -> bool:
    """Whether a literal is the device of automatic mixed precision.

    On a machine without the origin's device that is off, and with the origin's name it stays off.
    """
    parent = getattr(text.whole, "parent", None)
    call = getattr(parent, "parent", None) if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call):
        return False
    return (module.names.dotted(call.func) or "") in module.flow.sinks.precision


def choice(text: Text) -> bool:
    """Whether a literal is a value that an option allows: the origin's stays allowed on a CPU."""
    outer = getattr(text.whole, "parent", None)
    if not isinstance(outer, (ast.List, ast.Tuple, ast.Set)):
        return False
    taker = getattr(outer, "parent", None)
    if isinstance(taker, ast.Call):
        return getattr(taker.func, "attr", getattr(taker.func, "id", "")) == "Choice"
    return isinstance(taker, ast.keyword) and taker.arg == "choices"


def inside_fstring(module: Module, node: ast.AST) -> bool:
    """Whether a literal stands in an f-string's braces, where quotes would clash."""
    return module.names.enclosing(node, (ast.JoinedStr,)) is not None


def typed_tensor(module: Module, text: Text) -> Iterator[Finding]:
    """`"torch.cuda.FloatTensor"` as a string."""
    kind = text.value.rpartition(".")[2]
    advice = module.vocabulary.name(kind)
    if advice.to != kind:
        yield report(
            module,
            text,
            advice.note
            or language.Text("{chip} has no {kind}", chip=module.context.chip.name, kind=kind),
        )
        return
    if module.context.style is Style.AGNOSTIC:
        if inside_fstring(module, text.node):
            yield report(module, text, "a call can't stand here")
            return
        written = f'f"torch.{{{module.helper}.accelerator()}}.{kind}"'
        yield module.find("JM106", text.span, edits=[(*text.span, written)], needs="helper")
        return
    yield fix(module, text, "JM106")
