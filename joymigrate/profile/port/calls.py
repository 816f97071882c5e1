"""What a kernel calls, as Triton's own front end meets it: names, literals and dtypes resolved.

Only what is compiled is met: of an `if` that is decided while compiling, one branch.
"""

from __future__ import annotations

import ast
import functools
from types import ModuleType
from typing import Any

import triton.language as tl
from triton.compiler.code_generator import CodeGenerator
from triton.language import core
from triton.runtime import JITFunction

from joymigrate.profile.port.vocabulary import COMPUTED, LANGUAGE

LIBRARY = LANGUAGE + "extra.libdevice"  # stands for the library of whatever backend compiles
DTYPES = {one.name: name for name, one in vars(tl).items() if isinstance(one, tl.dtype)}


class FrontEndWatch:
    """The calls and statements of one file that were compiled."""

    def __init__(self) -> None:
        self.begin("")

    def begin(self, file: str) -> None:
        """Watch this file from here on; places are (line, column) in it."""
        self.file = file
        self.calls: dict[str, dict[str, Any]] = {}
        self.lines: set[int] = set()
        self.way: list[list[int]] = []  # the calls of helpers that lead here
        self.case = 0

    def begin_case(self) -> None:
        """What comes is met with other arguments."""
        self.case += 1

    def told(self) -> dict[str, Any]:
        """What was met, for JSON."""
        return {"calls": list(self.calls.values()), "lines": sorted(self.lines)}

    def place(self, generator: Any, node: ast.AST) -> list[int]:
        """Where a node of a function stands in its file."""
        line, column = node.lineno, node.col_offset  # type: ignore[attr-defined]
        return [generator.begin_line + line, column]

    def note(self, generator: Any, node: ast.AST, name: str, given: dict[str, Any]) -> None:
        """Remember a call."""
        values = {key: getattr(value, "value", value) if isinstance(value, core.constexpr)
                  else value for key, value in given.items()}  # fmt: skip
        dtypes = [DTYPES[v.name] for v in values.values()
                  if isinstance(v, tl.dtype) and v.name in DTYPES]  # fmt: skip
        literals = {key: v if v is None or isinstance(v, (str, int, float)) else COMPUTED
                    for key, v in values.items()}  # fmt: skip
        made = {
            "name": name, "given": literals, "dtypes": dtypes,
            "place": self.place(generator, node), "from": self.way[0] if self.way else None,
            "helper": generator.jit_fn.__name__ if self.way else "",
        }  # fmt: skip
        cases = self.calls.setdefault(repr(made), {**made, "cases": []})["cases"]
        if self.case not in cases:
            cases.append(self.case)


WATCH = FrontEndWatch()


def name_of(function: Any) -> str:
    """The language's name of what is called, with its module; "" for what is no part of it."""
    owner = getattr(function, "__self__", None)
    function = getattr(function, "__func__", function)
    module = str(getattr(function, "__module__", ""))
    name = str(getattr(function, "__name__", "")).removeprefix("builtin_")  # `min`, `max`
    if not f"{module}.".startswith(LANGUAGE):
        return ""
    descriptor = isinstance(owner, core.tensor_descriptor_base)
    return f"{module}.{name}_tensor_descriptor" if descriptor else f"{module}.{name}"


def install() -> None:
    """Watch the front end of this process, once."""
    visit, call, loop = CodeGenerator.visit, CodeGenerator.call_Function, CodeGenerator.visit_For

    def visited(self: Any, node: Any) -> Any:
        read = isinstance(node, ast.stmt) and hasattr(node, "lineno")  # the compiler makes some
        if read and self.file_name == WATCH.file:
            WATCH.lines.add(WATCH.place(self, node)[0])
        return visit(self, node)

    def called(self: Any, node: Any, function: Any, args: Any, words: Any) -> Any:
        if self.file_name != WATCH.file or not isinstance(node, ast.Call):  # an operator's sign
            return call(self, node, function, args, words)
        name = name_of(function)
        if name:
            given = {str(at): value for at, value in enumerate(args)}
            WATCH.note(self, node, name, given | words)
        inside = not name and isinstance(function, JITFunction)
        if inside:
            WATCH.way.append(WATCH.place(self, node))
        try:
            return call(self, node, function, args, words)
        finally:
            if inside:
                WATCH.way.pop()

    def looped(self: Any, node: Any) -> Any:
        over = node.iter if isinstance(node.iter, ast.Call) else None
        name = name_of(self.visit(over.func)) if over is not None else ""
        if over is not None and name and self.file_name == WATCH.file:
            words = {k.arg: k.value.value for k in over.keywords
                     if k.arg and isinstance(k.value, ast.Constant)}  # fmt: skip
            WATCH.note(self, over, name, words)
        return loop(self, node)

    CodeGenerator.visit, CodeGenerator.call_Function = visited, called
    CodeGenerator.visit_For = looped


def under_own_names(modules: dict[str, ModuleType]) -> dict[str, ModuleType]:
    """A backend's modules, with the functions of its library under the name that kernels write."""
    library = ModuleType("the library of the backend")
    for name, function in vars(modules[LIBRARY]).items():
        if core.is_builtin(function):

            @functools.wraps(function)
            def same(*args: Any, _real: Any = function, **words: Any) -> Any:
                return _real(*args, **words)

            same.__module__ = LIBRARY
            setattr(library, name, same)
    return modules | {LIBRARY: library}
