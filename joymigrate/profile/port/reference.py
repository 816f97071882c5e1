"""Finds a torch reference of a bound operator: a Python function of the project.

It has the operator's name and takes its arguments. Without one, the original's own sources, built
for the CPU, are the reference (`originals.py`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.profile.port.dotted_names import dotted_name
from joymigrate.profile.port.extract import Extract
from joymigrate.profile.port.operators import BoundOperator, files

ENDINGS = re.compile(r"(_(cuda|gpu|cpu|kernel|fwd|forward|op|impl))+$")
LIKE = ("{}_ref", "{}_reference", "ref_{}", "reference_{}", "{}_torch", "torch_{}", "{}_pytorch",
        "pytorch_{}", "{}_native", "{}_naive", "naive_{}", "{}_core_pytorch", "{}_python", "{}_py",
        "{}_fallback", "{}_slow")  # fmt: skip
FALLBACK, HOST, KERNEL = "a Python function", "C++ for the CPU", "CUDA on the CPU"


@dataclass(frozen=True, slots=True)
class Derived:
    """A reference: `entry` is its function; `left_out` are arguments that it does not take."""

    kind: str
    where: str
    text: str
    entry: str
    left_out: tuple[str, ...] = ()


class SourceProject:
    """The sources of some paths, read once, and when they are asked for."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = list(paths)
        self.python, self.native = files(self.paths)
        self.asked: dict[Path, ast.Module] = {}
        self.refused: set[str] = set()  # digests of originals that do not build here

    def tree(self, path: Path) -> ast.Module:
        """The syntax of a Python file; an empty one where it is none."""
        if path not in self.asked:
            try:
                self.asked[path] = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError):
                self.asked[path] = ast.Module([], [])
        return self.asked[path]


def fallback(one: BoundOperator, project: SourceProject) -> Derived | None:
    """A function of the project with a reference's name, which takes the operator's arguments."""
    name = one.name.partition(".")[0]
    bases = dict.fromkeys((name, ENDINGS.sub("", name)))
    wanted = [pattern.format(base) for base in bases if base for pattern in LIKE]
    for path in project.python:
        for node in ast.walk(project.tree(path)):
            if isinstance(node, ast.FunctionDef) and node.name in wanted:
                made = adapt(one, node, path, project)
                if made is not None:
                    return made
    return None


def adapt(
    one: BoundOperator, node: ast.FunctionDef, path: Path, project: SourceProject
) -> Derived | None:
    """The fallback with what it needs, called by the names that both have.

    A position's names are that of the C++ and those of the variables that Python calls it with.
    """
    if one.arguments is None:
        return None
    takes = [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]
    defaults = len(node.args.defaults)
    optional = set(takes[len(takes) - defaults :]) if defaults else set()
    have = [name_in_python(a.name) for a in one.arguments]
    said = names_at_calls(one, project)
    shared: dict[str, str] = {}
    for place, name in enumerate(have):
        for other in (name, *said.get(place, ())):
            if other in takes and other not in shared.values():
                shared[name] = other
                break
    missing = [name for name in takes if name not in shared.values() and name not in optional]
    if missing or not shared or "self" in takes:
        return None
    parts: dict[str, str] = {}
    roots = [p if p.is_dir() else p.parent for p in project.paths]
    try:
        Extract(roots).take(node.name, path, project.tree(path), parts, ())
    except JoyError:
        return None
    entry = f"{node.name}_called"
    left = tuple(name for name in have if name not in shared)
    lines = [f"def {entry}({', '.join(have)}):"]
    for name, argument in zip(have, one.arguments, strict=True):
        if name in left and ("optional" in argument.type or "bool" in argument.type
                             or "?" in argument.type):  # fmt: skip
            lines += [f"    if {name} is not None and {name} is not False:",
                      f"        raise NotImplementedError({name!r})"]  # fmt: skip
    given = ", ".join(f"{theirs}={ours}" for ours, theirs in shared.items())
    lines += [f"    return {node.name}({given})"]
    text = "\n\n".join([*parts.values(), "\n" + "\n".join(lines)]) + "\n"
    return Derived(FALLBACK, f"{path.as_posix()}:{node.lineno}", text, entry, left)


def name_in_python(name: str) -> str:
    """`bias_` of C++ is `bias` in Python."""
    return name.rstrip("_") or name


def names_at_calls(one: BoundOperator, project: SourceProject) -> dict[int, list[str]]:
    """The variables that the project's Python calls an operator with, by position."""
    found: dict[int, list[str]] = {}
    name = one.name.partition(".")[0]
    for path in project.python:
        for node in ast.walk(project.tree(path)):
            if isinstance(node, ast.Call) and dotted_name(node.func).endswith(f".{name}"):
                for place, argument in enumerate(node.args):
                    if isinstance(argument, ast.Name):
                        found.setdefault(place, []).append(argument.id)
    return found
