"""What a Python file does, as counted facts: of two versions what was added and what was lost."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from joymigrate.chips import origin

BROAD = {"Exception", "BaseException", "RuntimeError", "AssertionError", "Error", "OSError"}
LITERALS = 3  # numbers in one list that make it a table of results


@dataclass(frozen=True, slots=True)
class CodeFact:
    """One thing that code does: its kind, and the name or value that it is about."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a file inside the functions that are to be mended, and elsewhere; comments."""

    inside: Counter[CodeFact]
    elsewhere: Counter[CodeFact]
    comments: Counter[str]
    shape: str  # the code without blanks and comments

    @property
    def all(self) -> Counter[CodeFact]:
        """Those of both."""
        return self.inside + self.elsewhere


def read_facts(text: str, functions: Collection[str]) -> Facts:
    """The facts of a source; `functions` are the dotted names of those that are to be mended, an
    empty one the statements of the file itself. Raises `SyntaxError`."""
    tree = ast.parse(text)
    modules = list_imports(tree)
    inside: Counter[CodeFact] = Counter()
    elsewhere: Counter[CodeFact] = Counter()
    for node, place in walk(tree):
        mine = any(place == one or (one and place.startswith(f"{one}.")) for one in functions)
        (inside if mine else elsewhere).update(facts_of(node, modules))
    return Facts(inside, elsewhere, comments(text), ast.dump(tree))


def walk(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Every node with the dotted name of the function or class around it; parents are set."""
    pending: list[tuple[ast.AST, str]] = [(tree, "")]
    while pending:
        node, place = pending.pop()
        yield node, place
        below = place
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            below = f"{place}.{node.name}".lstrip(".")
        for child in ast.iter_child_nodes(node):
            child.parent = node  # type: ignore[attr-defined]
            pending.append((child, below))


def functions_behind(text: str, line: int) -> tuple[str, ...]:
    """The dotted names of the innermost function around a line, empty outside of all, and of those
    in the file that made a value which is used there."""
    tree = ast.parse(text)
    functions: dict[str, ast.AST] = {"": tree}
    for node, place in walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions[f"{place}.{node.name}".lstrip(".")] = node
    around = [name for name, node in functions.items() if name and holds(node, line)]
    best = max(around, key=lambda name: functions[name].lineno, default="")  # type: ignore[attr-defined]
    used = names_used(functions[best], line)
    return (best, *(name for name in functions if name and name != best and name in used))


def names_used(function: ast.AST, line: int) -> set[str]:
    """The names in the simple statement at a line, and those that they were made of."""
    simple = [one for one in ast.walk(function) if isinstance(one, ast.stmt)]
    simple = [one for one in simple if not hasattr(one, "body")]
    pending = [one for one in simple if holds(one, line)]
    found: set[str] = set()
    while pending:
        names = {name_of(one) for one in ast.walk(pending.pop()) if is_name(one)} - found
        found |= names
        pending += [one for one in simple if isinstance(one, ast.Assign)
                    and any(name_of(target) in names for target in one.targets)]  # fmt: skip
    return found


def is_name(node: ast.AST) -> bool:
    """Whether a node is a name or a dotted one."""
    return isinstance(node, ast.Name | ast.Attribute)


def holds(node: ast.AST, line: int) -> bool:
    """Whether a line lies in a node that has lines."""
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return first is not None and first <= line <= (last or first)


def list_imports(tree: ast.AST) -> set[str]:
    """The names in a file that stand for modules or for what they hold."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(one.asname or one.name).partition(".")[0] for one in node.names}
    return found


def facts_of(node: ast.AST, modules: set[str]) -> Iterator[CodeFact]:
    """The facts of one node."""
    if isinstance(node, ast.Call):
        yield CodeFact("call", name_of(node.func))
    if isinstance(node, ast.Attribute | ast.Name):
        yield CodeFact("name", name_of(node))
    if isinstance(node, ast.Constant):
        yield from constant_facts(node)
    if isinstance(node, ast.ExceptHandler):
        named = name_of(node.type).rpartition(".")[2] if node.type else ""
        many = isinstance(node.type, ast.Tuple)
        if not node.type or many or named in BROAD:
            yield CodeFact("handler", named)
    if isinstance(node, ast.Break | ast.Continue):
        yield CodeFact("leave", type(node).__name__)
    if isinstance(node, ast.Return):
        value = node.value
        if value is None or (isinstance(value, ast.Constant) and value.value is None):
            yield CodeFact("leave", "Return")
        yield CodeFact("fixed" if is_literal(value) else "worked out", "return")
    if isinstance(node, ast.If | ast.While | ast.IfExp) and is_decided(node.test):
        yield CodeFact("decided", type(node).__name__)
    if isinstance(node, ast.List | ast.Tuple | ast.Dict | ast.Set) and is_table(node):
        yield CodeFact("table", "")
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            root = name_of(target).partition(".")[0]
            if isinstance(target, ast.Attribute | ast.Subscript) and root in modules:
                yield CodeFact("patched", name_of(target))
            elif node.value is not None:
                kind = "fixed" if is_literal(node.value) else "worked out"
                yield CodeFact(kind, ast.unparse(target))


def constant_facts(node: ast.Constant) -> Iterator[CodeFact]:
    """A number, a text, or the host's name where it is no part of a choice."""
    if is_number(node.value):
        yield CodeFact("number", repr(node.value))
    elif isinstance(node.value, str) and not isinstance(getattr(node, "parent", None), ast.Expr):
        yield CodeFact("text", node.value)
        if node.value == "cpu" or node.value.startswith("cpu:"):
            yield CodeFact("choice" if is_chosen(node) else "host", "cpu")


def is_chosen(node: ast.AST) -> bool:
    """Whether a value is asked about, or is one side of a choice that the program makes.

    What the origin decides is no choice: `torch.cuda.is_available()` is false on every other chip,
    so that all of it would go to the host there.
    """
    below, above = node, getattr(node, "parent", None)
    called = False
    while above is not None and not isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef):
        if isinstance(above, ast.Dict) or (isinstance(above, ast.Compare) and not called):
            return True
        if isinstance(above, ast.BoolOp):
            return not any(map(names_origin, above.values))
        if isinstance(above, ast.If | ast.IfExp) and below is not above.test:
            return not names_origin(above.test)
        called = called or isinstance(above, ast.Call)
        below, above = above, getattr(above, "parent", None)
    return False


def names_origin(node: ast.AST) -> bool:
    """Whether the origin's device is named anywhere below a node."""
    return any(
        of_origin(name_of(one)) or (isinstance(one, ast.Constant) and of_origin(str(one.value)))
        for one in ast.walk(node)
    )


def of_origin(name: str) -> bool:
    """Whether a dotted name is the origin's: what is to be replaced."""
    return origin().device in re.split(r"[.:]", name)


def is_number(value: object) -> bool:
    """Whether a constant is a number."""
    return isinstance(value, int | float | complex) and not isinstance(value, bool)


def is_table(node: ast.AST) -> bool:
    """Whether a list or its like holds several numbers."""
    parts = [one.value for one in ast.iter_child_nodes(node) if isinstance(one, ast.Constant)]
    return sum(map(is_number, parts)) >= LITERALS


def is_literal(node: ast.AST | None) -> bool:
    """Whether a value is made of constants alone."""
    if node is None:
        return False
    return not any(isinstance(one, ast.Name | ast.Call | ast.Attribute) for one in ast.walk(node))


def is_decided(test: ast.AST) -> bool:
    """Whether a condition is decided by a constant in it; `while True` is how loops are written."""
    parts = test.values if isinstance(test, ast.BoolOp) else [test]
    fixed = [one.value for one in parts if isinstance(one, ast.Constant)]
    return bool(fixed) and not (len(parts) == 1 and fixed == [True])


def name_of(node: ast.AST | None) -> str:
    """`a.b.c` of an expression; `.c` where its root is no name."""
    if isinstance(node, ast.Attribute):
        head = name_of(node.value)
        return f"{head}.{node.attr}" if head else f".{node.attr}"
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    return node.id if isinstance(node, ast.Name) else ""


def comments(text: str) -> Counter[str]:
    """The comments of a source."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, IndentationError):
        return Counter()
    return Counter(one.string for one in tokens if one.type == tokenize.COMMENT)
