"""One Python file as cells and edges."""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

from joymigrate.rewrite.guards import ends_block, negative
from joymigrate.rewrite.source import SourceText
from joymigrate.rewrite.values.cells import (
    COMPARED,
    CallSite,
    Cell,
    Class,
    FileValues,
    Function,
    find_names,
)
from joymigrate.rewrite.values.expressions import Expressions, is_split

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def read(
    source: SourceText, path: str, words: re.Pattern[str], package: tuple[str, ...]
) -> FileValues | None:
    """The cells of a Python file; None for one that does not parse. `package` is its own."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source.text)
        reader = StatementReader(source, path, words, package)
        reader.module(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return reader.file


class StatementReader(Expressions):
    """Statements of one file."""

    def __init__(
        self, source: SourceText, path: str, words: re.Pattern[str], package: tuple[str, ...]
    ) -> None:
        super().__init__(source, path, words)
        self.package = package
        self.here: list[int] = []  # functions around
        self.owner: list[int] = []  # classes around

    def module(self, tree: ast.Module) -> None:
        """Read a whole file; an import means one thing in all of it, wherever it stands."""
        self.file.bound = self.bound(tree.body)
        self.block(tree.body)

    def bound(self, body: list[ast.stmt]) -> set[str]:
        """Names that a block binds; notes its imports."""
        imports: list[ast.stmt] = []
        names = find_names(body, set(), imports)
        for node in imports:
            self.note_import(node)
            names -= {each.asname or each.name for each in node.names}  # type: ignore[attr-defined]
        stars = (n for n in imports if isinstance(n, ast.ImportFrom) and n.names[0].name == "*")
        for node in sorted(stars, key=lambda each: each.lineno):
            self.file.stars.append(self.absolute(node))
        if ":=" in self.source.text:
            names |= {n.target.id for part in body for n in ast.walk(part)
                      if isinstance(n, ast.NamedExpr)}  # fmt: skip
        return names

    def note_import(self, node: ast.stmt) -> None:
        """Note what an import binds, and what it stands for."""
        if isinstance(node, ast.Import):
            for each in node.names:
                name = each.asname or each.name.split(".")[0]
                self.file.imports[name] = each.name if each.asname else name
                self.file.import_lines[name] = node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = self.absolute(node)
            for each in node.names:
                if base and each.name != "*":
                    self.file.imports[each.asname or each.name] = f"{base}.{each.name}"
                    self.file.import_lines[each.asname or each.name] = node.lineno

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module that a `from` import names."""
        if not node.level:
            return node.module or ""
        keep = len(self.package) - (node.level - 1)
        if keep < 0 or not self.package:
            # beside the file: `from .base import x` of a folder without `__init__.py`
            return node.module or "" if node.level == 1 else ""
        return ".".join([*self.package[:keep], *([node.module] if node.module else [])])

    # -- statements ----------------------------------------------------------------------------

    def block(self, body: list[ast.stmt], end: int = 0) -> Any:
        """Statements one after the other; an early exit guards what follows it, up to `end`.

        Gives the last guard that goes beyond the block.
        """
        opened, guard, beyond = 0, None, end > 0
        end = end or (self.span(body[-1])[1] if body else 0)
        for node in body:
            before, chain = self.statement, self.chain
            self.statement = node.lineno
            guard = self.one(node, end)
            if guard is not None:
                self.guards.append((guard, True))
                opened += 1
            self.statement, self.chain = before, chain
        if opened:
            del self.guards[len(self.guards) - opened :]
        return guard if beyond else None

    def one(self, node: ast.stmt, end: int) -> Any:
        """One statement; the guard that it puts before what follows up to `end`, if any."""
        if isinstance(node, FUNCTIONS):
            self.function(node)
        elif isinstance(node, ast.ClassDef):
            self.klass(node)
        elif isinstance(node, (ast.If, ast.While)):
            return self.branch(node, end)
        elif isinstance(node, ast.Assign):
            held = self.value(node.value)
            for target in node.targets:
                whole = is_split(node.value) and isinstance(target, (ast.Tuple, ast.List))
                self.assign(target.elts[0] if whole else target, held, node.lineno)  # type: ignore[attr-defined]
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.assign(node.target, self.value(node.value), node.lineno)
        elif isinstance(node, ast.AugAssign):
            self.assign(node.target, self.value(node.value), node.lineno)
        elif isinstance(node, ast.Return):
            held = self.value(node.value)
            if self.here:
                result = ("return", self.path, self.here[-1])
                self.file.join(result, held, node.lineno, "returned")
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            held = self.value(node.iter)
            self.assign(node.target, self.field(held, "[]"), node.lineno)
            self.block(node.body)
            self.block(node.orelse)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                held = self.value(item.context_expr)
                if item.optional_vars is not None:
                    self.assign(item.optional_vars, held, node.lineno)
            self.block(node.body)
        elif isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            self.tried(node)
        elif isinstance(node, ast.Match):
            self.match(node)
        elif isinstance(node, ast.Assert):
            guard = self.guard_of(node.test, self.span(node)[1], end)
            self.file.refusing.append(guard)
            return guard
        elif isinstance(node, ast.Expr):
            self.single = node
            if not isinstance(node.value, ast.Constant):
                self.value(node.value)
        elif isinstance(node, (ast.Raise, ast.Delete)):
            for child in ast.iter_child_nodes(node):
                self.value(child)
        return None

    def branch(self, node: ast.If | ast.While, end: int) -> Any:
        """`if`: its test guards the body, or what follows where the body leaves."""
        if not self.chain:
            self.chain = self.span(node)[0] + 1
        negated = negative(node.test)
        after = negated and not node.orelse and ends_block(node.body[-1])
        behind = node.orelse or node.body if negated else node.body
        last = end if after else self.span(behind[-1])[1]
        first = self.span(node)[1] if after else self.span(behind[0])[0]
        guard = self.guard_of(node.test, first, last, denied=negated)
        if ends_block(node.body[-1] if negated else node.orelse[-1] if node.orelse else node.test):
            self.file.refusing.append(guard)
        self.guards.append((guard, not negated))
        chain, self.chain = self.chain, 0
        self.block(node.body)
        self.guards[-1] = (guard, negated)
        one = len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)
        self.chain = chain if one else 0
        later = self.block(node.orelse, end if one and ends_block(node.body[-1]) else 0)
        self.chain = chain
        self.guards.pop()
        return guard if after else later

    def tried(self, node: Any) -> None:
        """`try` and all of its parts."""
        for body in (node.body, *(each.body for each in node.handlers)):
            self.block(body)
        self.block(node.orelse)
        self.block(node.finalbody)

    def match(self, node: ast.Match) -> None:
        """`match`: the subject is compared with the patterns."""
        subject = self.value(node.subject)
        if not self.chain:
            self.chain = self.span(node)[0] + 1
        for case in node.cases:
            for part in ast.walk(case.pattern):
                if isinstance(part, ast.MatchValue):
                    self.file.join(subject, self.value(part.value), part.lineno, COMPARED)
            if case.guard is not None:
                self.value(case.guard)
            self.block(case.body)

    def assign(self, target: ast.AST, value: Cell | None, line: int) -> None:
        """Give a value to a target; a tuple takes its parts."""
        if isinstance(target, (ast.Tuple, ast.List)):
            for number, part in enumerate(target.elts):
                self.assign(part, self.field(value, str(number)), line)
        elif isinstance(target, ast.Starred):
            return
        else:
            self.file.join(self.value(target), value, line, "assigned")

    # -- functions and classes -----------------------------------------------------------------

    def function(self, node: Any) -> Cell | None:
        """A function or lambda: parameters, defaults, body."""
        named = isinstance(node, FUNCTIONS)
        scope = self.span(node)[0] or 1  # 0 is the module
        args, owner = node.args, None
        marks = node.decorator_list if named else []
        inside = self.scopes[-1:] and self.scopes[-1][2] == "class"
        if named and inside:
            owner = self.scopes[-1][0]
        plain = [*args.posonlyargs, *args.args]
        kinds = {getattr(m, "id", getattr(m, "attr", "")) for m in marks}
        cell: Cell = ("function", self.path, scope)
        for arg, default in [
            *zip(plain[::-1], args.defaults[::-1], strict=False),
            *zip(args.kwonlyargs, args.kw_defaults, strict=True),
        ]:
            if default is not None:
                parameter = ("name", self.path, scope, arg.arg)
                self.file.join(parameter, self.value(default), arg.lineno, "default")
        for arg in (*plain, *args.kwonlyargs):
            if isinstance(arg.annotation, (ast.Name, ast.Attribute)):  # an object of the class
                made = self.fresh(arg.annotation)
                called = self.value(arg.annotation)
                if called is not None:
                    self.file.made[made] = CallSite(made, called, (), arg.lineno)
                    parameter = ("name", self.path, scope, arg.arg)
                    self.file.join(parameter, made, arg.lineno, "annotated")
        for mark in marks:  # `@skipif(…)` stands before what it decorates
            self.guard_of(mark, self.span(node.body[0])[0], self.span(node)[1])
        if owner is not None and plain and "staticmethod" not in kinds:
            first = plain.pop(0)
            kind = "class" if "classmethod" in kinds else "object"
            itself = ("name", self.path, scope, first.arg)
            self.file.join(itself, (kind, self.path, owner), node.lineno, "itself")
        everyone = [*(a.arg for a in plain), *(a.arg for a in args.kwonlyargs)]
        name = node.name if named else ""
        rest, end = args.kwarg.arg if args.kwarg else "", self.span(node)[1]
        self.file.functions[scope] = Function(name, tuple(everyone), len(plain), owner, rest, end)
        for word in everyone:
            self.file.parameters[("name", self.path, scope, word)] = (scope, word)
        if args.kwarg is not None:
            self.file.parameters["name", self.path, scope, rest] = (scope, "**")
        names = {a.arg for a in [*args.posonlyargs, *args.args, *args.kwonlyargs,
                                 *filter(None, (args.vararg, args.kwarg))]}  # fmt: skip
        guards, self.guards = self.guards, []
        self.scopes.append((scope, names | self.bound(node.body) if named else names, "function"))
        self.here.append(scope)
        if named:
            self.block(node.body)
        else:
            result = ("return", self.path, scope)
            self.file.join(result, self.value(node.body), node.lineno, "returned")
        self.here.pop()
        self.scopes.pop()
        self.guards = guards
        if not named:
            return cell
        for mark in marks:
            self.decorated(mark, scope)
            if (given := fixture_name(mark, name)) is not None:
                self.file.fixtures[given] = scope
        value: Cell = cell
        if kinds & {"property", "cached_property"}:
            value = ("return", self.path, scope)
        elif "setter" in kinds and everyone:
            value = ("name", self.path, scope, everyone[0])
        self.file.join(self.variable(name), value, node.lineno, "defined")
        return cell

    def decorated(self, mark: ast.AST, scope: int) -> None:
        """What a decorator gives to a parameter: `parametrize`, click's options."""
        if not isinstance(mark, ast.Call):
            return
        for params in (k.value for k in mark.keywords if k.arg == "params"):
            given = ("field", ("name", self.path, scope, "request"), "param")
            self.file.join(given, self.field(self.value(params), "[]"), mark.lineno, "given")
        texts = [a.value for a in mark.args if isinstance(a, ast.Constant)]
        names = [t for t in texts if isinstance(t, str)]
        if not names:
            return
        words = re.split(r"\s*,\s*", max(names, key=len).lstrip("-").replace("-", "_"))
        held = [self.value(a) for a in mark.args[1:]]
        held += [self.value(k.value) for k in mark.keywords if k.arg in ("type", "default")]
        for number, word in enumerate(words):
            parameter = ("name", self.path, scope, word)
            for cell in held:
                element = self.field(cell, "[]")
                if len(words) > 1:
                    element = self.field(element, str(number))
                self.file.join(parameter, element, mark.lineno, "given")
                if len(words) == 1 and cell is not None and cell[0] == "text":
                    self.file.join(parameter, cell, mark.lineno, "given")

    def klass(self, node: ast.ClassDef) -> None:
        """A class: its bases, attributes and methods."""
        scope = self.span(node)[0] or 1
        bases = tuple(filter(None, (self.value(base) for base in node.bases)))
        for mark in node.decorator_list:
            self.guard_of(mark, self.span(node.body[0])[0], self.span(node)[1])
        variable = self.variable(node.name)
        guards, self.guards = self.guards, []
        names = self.bound(node.body)
        self.scopes.append((scope, names, "class"))
        self.block(node.body)
        self.scopes.pop()
        self.guards = guards
        made = next((s for s, f in self.file.functions.items()
                     if f.owner == scope and f.name == "__init__"), None)  # fmt: skip
        noted = (n.target for n in node.body if isinstance(n, ast.AnnAssign))
        fields = tuple(n.id for n in noted if isinstance(n, ast.Name))
        self.file.classes[scope] = Class(node.name, bases, fields, made, frozenset(names))
        self.file.join(variable, ("class", self.path, scope), node.lineno, "defined")


def fixture_name(mark: ast.AST, name: str) -> str | None:
    """The name by which tests take what a decorated function gives: `@pytest.fixture(name="x")`."""
    func = getattr(mark, "func", mark)
    if getattr(func, "attr", getattr(func, "id", "")) != "fixture":
        return None
    given = (k.value for k in getattr(mark, "keywords", ()) if k.arg == "name")
    return next((str(getattr(each, "value", name)) for each in given), name)
