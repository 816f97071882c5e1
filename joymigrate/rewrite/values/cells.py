"""Cells and what one file says about them.

A cell is a tuple that names a place for a value:

    ("text", path, start)              a literal; `start` is an offset in the file's text
    ("value", path, start, end)        an expression without a name
    ("name", path, scope, name)        a variable or parameter; scope 0 is the module
    ("return", path, scope)            what a function gives
    ("function" | "class" | "object", path, scope)   a function, a class, an instance of it
    ("module", path), ("outside", dotted)            a file of the project, a name of a package
    ("attribute", path, scope, name)   an attribute of the instances of a class
    ("field", cell, name)              an attribute or entry of what a cell holds
    ("setting", name)                  an option or a key of a settings file
    ("setting", name, file)            an option of the program that a file is
    ("environment", name)              an environment variable

A scope is the offset of the function or class that opens it, 0 for the module.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

Cell = tuple[Any, ...]
DEPTH = 3  # fields of fields of fields; deeper ones are not followed


# Which way a value goes along an edge: it comes from the other cell, goes there, or either.
COMES, GOES, EITHER = 1, -1, 0
COMPARED = "compared"
COMPARISON = "=="  # what is asked by a comparison with a text
DECIDED = "decided"  # a yes or no, and the answer of a condition that it stands behind
PLACED = "placed"  # a device, and a tensor or module that is on it


@dataclass(frozen=True, slots=True)
class Edge:
    """The value of a cell is that of another one, or is compared with it, as a line says."""

    cell: Cell
    line: int
    kind: str  # "assigned", "compared", "argument", …: what `explain` tells
    flow: int = EITHER
    path: str = ""  # the file of the line, where it is not that of the cell


@dataclass(frozen=True, slots=True)
class TextPlace:
    """A text of the file: where it stands, the statement around it, and its chain of `if`s."""

    start: int
    end: int
    line: int
    statement: int
    chain: int
    quoted: bool = True  # whether it is a text itself, and no call that places a value


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call: its own cell, what is called, and the cells of its arguments by number or name."""

    cell: Cell
    called: Cell
    given: tuple[tuple[str, Cell], ...]
    line: int
    name: str = ""  # of what is called, where a package has it


@dataclass(frozen=True, slots=True)
class Function:
    """A function: its parameters in order without `self`, its class, if any, what takes the
    keywords that no parameter has, and its last offset."""

    name: str
    parameters: tuple[str, ...]
    positional: int
    owner: int | None
    rest: str = ""
    end: int = 0


@dataclass(frozen=True, slots=True)
class Class:
    """A class: its bases, and the fields that a call of it fills when it has no `__init__`."""

    name: str
    bases: tuple[Cell, ...]
    fields: tuple[str, ...]
    made: int | None  # scope of its `__init__`
    names: frozenset[str]  # what its body binds


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition that code runs behind: the span of its test and the cells that it asks.

    `first:last` is the span of what runs behind it, by a no where it is `denied`; `cell` holds its
    answer.
    """

    start: int
    end: int
    line: int
    cells: tuple[Cell, ...]
    first: int
    last: int
    cell: Cell | None
    denied: bool = False


@dataclass(slots=True)
class FileValues:
    """The cells of one file with their edges inside of it."""

    path: str
    text: str
    edges: dict[Cell, list[Edge]] = field(default_factory=lambda: defaultdict(list))
    places: dict[Cell, TextPlace] = field(default_factory=dict)
    calls: dict[str, list[CallSite]] = field(default_factory=lambda: defaultdict(list))
    given: dict[Cell, list[tuple[CallSite, str]]] = field(default_factory=lambda: defaultdict(list))
    made: dict[Cell, CallSite] = field(default_factory=dict)  # a call by its own cell
    fields: dict[str, list[Cell]] = field(default_factory=lambda: defaultdict(list))
    functions: dict[int, Function] = field(default_factory=dict)
    classes: dict[int, Class] = field(default_factory=dict)
    parameters: dict[Cell, tuple[int, str]] = field(default_factory=dict)  # function and name
    imports: dict[str, str] = field(default_factory=dict)
    import_lines: dict[str, int] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    bound: set[str] = field(default_factory=set)  # names of the module, but for imports
    settings: dict[str, list[Edge]] = field(default_factory=lambda: defaultdict(list))
    outside: dict[Cell, str] = field(default_factory=dict)  # imported functions that place a value
    guards: dict[Cell, list[Guard]] = field(default_factory=lambda: defaultdict(list))
    refusing: list[Guard] = field(default_factory=list)  # conditions that leave, as a device is not
    conditions: dict[tuple[int, int], Guard] = field(default_factory=dict)  # by their span
    asking: dict[Cell, list[Guard]] = field(default_factory=lambda: defaultdict(list))
    questions: dict[Cell, str] = field(default_factory=dict)  # answers: what is asked
    fixtures: dict[str, int] = field(default_factory=dict)  # what pytest gives: its function

    def join(self, one: Cell | None, other: Cell | None, line: int, kind: str) -> None:
        """Say that `one` gets the value of `other`, or that both are compared."""
        if one is None or other is None or one == other:
            return
        flow = EITHER if kind == COMPARED else COMES
        for a, b, way in ((one, other, flow), (other, one, -flow)):
            edge = Edge(b, line, kind, way)
            self.edges[a].append(edge)
            if a[0] in ("setting", "environment"):
                self.settings[f"{a[0]}:{a[1]}"].append(edge)


def find_names(body: list[ast.stmt], found: set[str], imports: list[ast.stmt]) -> set[str]:
    """Names that a block binds in its own scope; imports inside of it are added to `imports`.

    Only statements are walked: of expressions, those in which a name is bound.
    """
    outer: set[str] = set()
    todo: list[Any] = list(body)
    while todo:
        node = todo.pop()
        kind = type(node)
        if kind in (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
            found.add(node.name)
        elif kind in (ast.Import, ast.ImportFrom):
            imports.append(node)
            found |= {(a.asname or a.name.split(".")[0]) for a in node.names if a.name != "*"}
        elif kind in (ast.Global, ast.Nonlocal):
            outer |= set(node.names)
        elif kind is ast.Assign:
            for target in node.targets:
                add_targets(target, found)
        elif kind in (ast.AnnAssign, ast.AugAssign):
            add_targets(node.target, found)
        elif kind not in SIMPLE:
            if kind in (ast.For, ast.AsyncFor):
                add_targets(node.target, found)
            elif kind in (ast.With, ast.AsyncWith):
                for item in node.items:
                    if item.optional_vars is not None:
                        add_targets(item.optional_vars, found)
            elif kind is ast.Match:
                for case in node.cases:
                    names = (getattr(part, "name", None) for part in ast.walk(case.pattern))
                    found |= {name for name in names if name}
                    todo += case.body
            for handler in getattr(node, "handlers", ()):
                if handler.name:
                    found.add(handler.name)
                todo += handler.body
            for block in BLOCKS:
                todo += getattr(node, block, ())
    return found - outer


def add_targets(target: ast.AST, found: set[str]) -> None:
    """Names that a target of an assignment binds."""
    if isinstance(target, ast.Name):
        found.add(target.id)
    elif isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            add_targets(part, found)
    elif isinstance(target, ast.Starred):
        add_targets(target.value, found)


SIMPLE = (
    ast.Expr,
    ast.Return,
    ast.Raise,
    ast.Assert,
    ast.Delete,
    ast.Pass,
    ast.Break,
    ast.Continue,
)
BLOCKS = ("body", "orelse", "finalbody")
