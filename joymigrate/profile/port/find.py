"""Finds `@triton.jit` kernels in a file, and the calls that launch them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from joymigrate.profile.port.dotted import dotted
from joymigrate.profile.port.project import Files
from joymigrate.profile.port.values import Scope, assigned, greatest

# Projects hand these names on from a module of their own.
REEXPORTED = {"tl": "triton.language", "triton": "triton"}


@dataclass(slots=True)
class Launch:
    """One `kernel[grid](…)`, or one configuration of an autotuner: numbers that the source says."""

    line: int
    numbers: dict[str, int] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    programs: int | None = None
    said: str = ""  # the caller's name, and what it puts into the arguments


@dataclass(slots=True)
class SourceKernel:
    """One kernel and its launches in the same file."""

    name: str
    node: ast.FunctionDef
    language: frozenset[str]  # names of triton.language in the file
    launches: list[Launch] = field(default_factory=list)


def names_of(tree: ast.Module) -> tuple[dict[str, str], frozenset[str]]:
    """What imported names stand for, and those that stand for triton.language."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                known[one.asname or one.name.partition(".")[0]] = (
                    one.name if one.asname else one.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for one in node.names:
                if one.name in REEXPORTED:  # `from vllm.triton_utils import tl, triton`
                    known[one.asname or one.name] = REEXPORTED[one.name]
                elif node.module and not node.level:
                    known[one.asname or one.name] = f"{node.module}.{one.name}"
    return known, frozenset(n for n, full in known.items() if full == "triton.language")


def full_name(node: ast.AST, known: dict[str, str]) -> str:
    """The name of what is called, with imports resolved."""
    first, dot, rest = dotted(node.func if isinstance(node, ast.Call) else node).partition(".")
    return f"{known.get(first, first)}{dot}{rest}"


def kernels(
    tree: ast.Module, path: Path = Path("own.py"), files: Files | None = None
) -> list[SourceKernel]:
    """Every kernel of a file with its launches; sizes are followed into the project's files."""
    known, language = names_of(tree)
    found: dict[str, SourceKernel] = {}
    scope = Scope(tree, path, files or Files([]))
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        decorators = {full_name(one, known): one for one in node.decorator_list}
        if "triton.jit" not in decorators:
            continue
        kernel = found[node.name] = SourceKernel(node.name, node, language)
        for one in decorators.values():
            kernel.launches += configurations(one, known)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
            for name in scope.chosen(node):
                if name in found:
                    found[name].launches.append(launched(node, found[name], scope))
    return sorted(found.values(), key=lambda kernel: kernel.node.lineno)


def configurations(decorator: ast.AST, known: dict[str, str]) -> Iterator[Launch]:
    """The configurations that an autotuner tries."""
    for node in ast.walk(decorator):
        if isinstance(node, ast.Call) and full_name(node, known) == "triton.Config":
            table = node.args[0] if node.args else None
            numbers = {}
            if isinstance(table, ast.Dict):
                pairs = zip(table.keys, table.values, strict=True)
                numbers = {
                    str(k.value): v.value
                    for k, v in pairs
                    if isinstance(k, ast.Constant)
                    and isinstance(v, ast.Constant)
                    and type(v.value) is int
                }
            options = tuple(k.arg for k in node.keywords if k.arg)
            yield Launch(node.lineno, numbers, options)


def launched(node: ast.Call, kernel: SourceKernel, scope: Scope) -> Launch:
    """What one launch says in numbers; of a value that is computed, the greatest it can have."""
    inside = scope.function_of(node)
    values = [(k.arg, k.value) for k in node.keywords if k.arg]
    values += [(a.arg, v) for a, v in zip(kernel.node.args.args, node.args, strict=False)]
    numbers = {
        name: most for name, value in values if (most := greatest(value, scope, inside)) is not None
    }
    grid = node.func.slice if isinstance(node.func, ast.Subscript) else None
    programs: int | None = None
    if isinstance(grid, ast.Tuple):
        programs = 1
        for part in grid.elts:
            known = isinstance(part, ast.Constant) and type(part.value) is int
            programs = programs * part.value if known and programs is not None else None  # type: ignore[attr-defined]
    words = [inside.name] if inside is not None else []
    for _, value in values if inside else ():
        words += [
            ast.unparse(one) for one, _ in assigned(dotted(value), inside or ast.Module([], []))
        ]
    return Launch(
        node.lineno, numbers, tuple(name for name, _ in values), programs, "\n".join(words)
    )
