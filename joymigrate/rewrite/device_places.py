"""Where a literal stands: text for people, a dictionary's key, a comparison, a question."""

from __future__ import annotations

import ast
import re

from joymigrate.rewrite import conditions
from joymigrate.rewrite.device_texts import DeviceText, find_matched, last_name
from joymigrate.rewrite.module import Module

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
GROWING = ("append", "add", "insert")
ENUMERATION = re.compile(r"(?:Enum|Flag)$")
ANNOTATED = "a type annotation"
TABLE_KEY = "a dictionary key, perhaps of saved files"


def where_available(module: Module, node: ast.expr) -> bool:
    """Whether a literal is the value where the origin's device is there to be used.

    `"cuda" if torch.cuda.is_available() else "cpu"`, and the same as a statement.
    """
    parent: ast.AST | None = getattr(node, "parent", None)
    if isinstance(parent, (ast.List, ast.Tuple)) and isinstance(parent.ctx, ast.Load):
        node, parent = parent, getattr(parent, "parent", None)  # `["cuda"] if … else []`
    if isinstance(parent, ast.IfExp):
        denied = isinstance(parent.test, ast.UnaryOp) and isinstance(parent.test.op, ast.Not)
        test = parent.test.operand if denied else parent.test  # type: ignore[attr-defined]
        return node is (parent.orelse if denied else parent.body) and asks(module, test)
    if isinstance(parent, ast.Call) and getattr(parent.func, "attr", "") in GROWING:
        parent = getattr(parent, "parent", None)  # `devices.append("cuda")`
    if not isinstance(parent, (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr)):
        return False
    block = getattr(parent, "parent", None)
    return isinstance(block, ast.If) and parent in block.body and asks(module, block.test)


def condition_of(module: Module, node: ast.expr) -> tuple[int, int] | None:
    """The span of a condition of the project's that chooses between this device and the host.

    `"cuda" if has_gpu() else "cpu"`.
    """
    parent = getattr(node, "parent", None)
    if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.Return)):
        parent = getattr(parent, "parent", None)
        if not isinstance(parent, ast.If) or node.parent not in parent.body:  # type: ignore[attr-defined]
            return None
    elif not isinstance(parent, ast.IfExp) or node is parent.test:
        return None
    denied = isinstance(parent.test, ast.UnaryOp) and isinstance(parent.test.op, ast.Not)
    test = parent.test.operand if isinstance(parent.test, ast.UnaryOp) else parent.test
    if isinstance(parent, ast.IfExp):
        chosen, other = (parent.orelse, parent.body) if denied else (parent.body, parent.orelse)
        if node is not chosen or not any(names_host(each) for each in ast.walk(other)):
            return None
    elif denied or not any(names_host(each) for part in instead(parent) for each in ast.walk(part)):
        return None
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    shared = any(conditions.is_shared(module, part) for part in parts)
    return module.span(parent.test) if shared else None


def names_host(node: ast.AST) -> bool:
    """Whether a node is the name of what a program uses without the origin's device."""
    return isinstance(node, ast.Constant) and node.value in ("cpu", "mps", "xpu")


def instead(branch: ast.If) -> list[ast.stmt]:
    """The statements that run where a condition does not hold: its `else`, or what follows."""
    block = getattr(getattr(branch, "parent", None), "body", [])
    if branch.orelse or not isinstance(block, list) or branch not in block:
        return branch.orelse
    at = block.index(branch)
    return [*block[max(0, at - 1) : at], *block[at + 1 : at + 2]]


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


def special_place(module: Module, text: DeviceText, parent: ast.AST | None) -> str | None:
    """`silent` for text and the like, a reason for places never rewritten, None for the rest."""
    node = text.whole
    if isinstance(parent, ast.Dict) and node in parent.keys:
        return TABLE_KEY
    if isinstance(parent, ast.Subscript) and parent.slice is node:
        if annotation(node):
            return ANNOTATED
        return TABLE_KEY
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


def compared_with(node: ast.expr) -> ast.expr | None:
    """The other operand when a literal is compared, searched for, or matched; else None."""
    parent = getattr(node, "parent", None)
    if isinstance(parent, (ast.Tuple, ast.List, ast.Set)):
        outer = getattr(parent, "parent", None)
        if isinstance(outer, ast.Compare) and parent in outer.comparators:
            return outer.left
        if isinstance(parent, ast.Tuple) and isinstance(outer, ast.Call):
            return find_searched(outer, parent)
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
        return (
            find_asserted(parent, node) or find_matched(parent, node) or find_searched(parent, node)
        )
    if isinstance(parent, ast.MatchValue):
        return subject(parent)
    return None


def subject(pattern: ast.AST) -> ast.expr | None:
    """What a pattern is matched with; of a sequence, the part that stands where it does."""
    at: ast.AST | None = pattern
    places: list[int] = []
    while at is not None and not isinstance(at, ast.Match):
        above = getattr(at, "parent", None)
        if isinstance(above, ast.MatchSequence):
            places.insert(0, above.patterns.index(at))  # type: ignore[arg-type]
        at = above
    found = at.subject if at is not None else None
    for place in places:
        parts = found.elts if isinstance(found, (ast.Tuple, ast.List)) else []
        found = parts[place] if place < len(parts) else None
    return found


ASSERTIONS = frozenset(
    (
        *("assertEqual", "assertNotEqual", "assertEquals", "assertIn", "assertNotIn", "assertIs"),
        "assert_equal",
    )
)


def find_asserted(call: ast.Call, argument: ast.expr) -> ast.expr | None:
    """The other side of `self.assertEqual(x.device.type, "cuda")`; None for other calls."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if name not in ASSERTIONS or argument not in call.args[:2] or len(call.args) < 2:
        return None
    return call.args[1 - call.args.index(argument)]


def find_searched(call: ast.Call, argument: ast.expr) -> ast.expr | None:
    """The string whose method (`x.startswith(…)`) takes `argument`; None for other calls."""
    method = isinstance(call.func, ast.Attribute) and call.func.attr in STRING_METHODS
    return call.func.value if method and argument in call.args[:1] else None  # type: ignore[attr-defined]


def mixed_precision(module: Module, text: DeviceText) -> bool:
    """Whether a literal is the device of automatic mixed precision.

    On a machine without the origin's device that is off, and with the origin's name it stays off.
    """
    parent = getattr(text.whole, "parent", None)
    call = getattr(parent, "parent", None) if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call):
        return False
    return (module.names.dotted(call.func) or "") in module.sinks.precision


def is_member(module: Module, node: ast.AST) -> bool:
    """Whether a literal is in the value of an enumeration's member: `CUDA = "cuda"`.

    Two members of one value are one: without an accelerator it keeps the origin's name.
    """
    statement: ast.AST | None = node
    while statement is not None and not isinstance(statement, ast.stmt):
        statement = getattr(statement, "parent", None)
    owner = getattr(statement, "parent", None)
    return isinstance(owner, ast.ClassDef) and is_enumeration(module, owner)


def is_enumeration(module: Module, owner: ast.ClassDef, steps: int = 4) -> bool:
    """Whether a class is one of `enum`, by the names of its bases and of theirs in the file."""
    names = {last_name(base) for base in owner.bases}
    if any(map(ENUMERATION.search, names)):
        return True
    classes = module.names.nodes[ast.ClassDef] if steps else ()
    return any(each.name in names and is_enumeration(module, each, steps - 1) for each in classes)
