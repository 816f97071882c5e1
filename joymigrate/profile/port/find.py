"""Finds `@triton.jit` kernels in a file, and the calls that launch them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from joymigrate.profile.port.dotted_names import dotted_name
from joymigrate.profile.port.project import Files
from joymigrate.profile.port.values import DEEP, FileScope, find_assigned, greatest

# Projects hand these names on from a module of their own.
REEXPORTED = {"tl": "triton.language", "triton": "triton"}
JIT = "triton.jit"
PARTS = 24  # definitions of a project that a decorator's configurations are looked for in
TUNED = ("kwargs", "pre_hook", "ir_override")  # arguments of a configuration that launch nothing


@dataclass(slots=True)
class Launch:
    """One `kernel[grid](…)`, or one configuration of an autotuner: numbers that the source says."""

    line: int
    numbers: dict[str, int] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    programs: int | None = None
    said: str = ""  # the caller's name, and what it puts into the arguments
    tried: bool = False  # a configuration, which every launch takes its numbers from


@dataclass(slots=True)
class SourceKernel:
    """One kernel and its launches in the same file."""

    name: str
    node: ast.FunctionDef
    language: frozenset[str]  # names of triton.language in the file
    launches: list[Launch] = field(default_factory=list)
    jit: str = JIT  # what compiles it
    direct: Mapping[str, str] = field(default_factory=dict)  # `from triton.language import load`


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
    for node in tree.body:  # `own_jit = triton.jit`
        value = node.value if isinstance(node, ast.Assign) else None
        value = value.body if isinstance(value, ast.IfExp) else value
        if isinstance(node, ast.Assign) and isinstance(value, (ast.Name, ast.Attribute)):
            whole = full_name(value, known)
            if whole.startswith("triton."):
                known |= {t.id: whole for t in node.targets if isinstance(t, ast.Name)}
    return known, frozenset(n for n, full in known.items() if full == "triton.language")


def direct_names(known: Mapping[str, str]) -> dict[str, str]:
    """Functions of the language that a file imports by name."""
    whole = "triton.language."
    return {
        name: full.removeprefix(whole) for name, full in known.items()
        if full.startswith(whole) and "." not in full.removeprefix(whole)
    }  # fmt: skip


def full_name(node: ast.AST, known: dict[str, str]) -> str:
    """The name of what is called, with imports resolved."""
    first, dot, rest = dotted_name(node.func if isinstance(node, ast.Call) else node).partition(".")
    return f"{known.get(first, first)}{dot}{rest}"


def is_jit(name: str) -> bool:
    """Whether a full name compiles kernels: triton's own, or one of its other languages."""
    return name.startswith("triton.") and name.rpartition(".")[2] == "jit"


def is_constexpr(argument: ast.arg) -> bool:
    """Whether a parameter is known when the kernel is compiled."""
    return argument.annotation is not None and "constexpr" in ast.unparse(argument.annotation)


def kernels(
    tree: ast.Module, path: Path = Path("own.py"), files: Files | None = None
) -> list[SourceKernel]:
    """Every kernel of a file with its launches; sizes are followed into the project's files."""
    known, language = names_of(tree)
    found: dict[str, SourceKernel] = {}
    scope = FileScope(tree, path, files or Files([]))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    by_hand = compiled_by_call(tree, known)
    for node in functions:
        decorators = [(full_name(one, known), one) for one in node.decorator_list]
        jit = next((name for name, _ in decorators if is_jit(name)), by_hand.get(node.name, ""))
        if not jit:
            continue
        kernel = found[node.name] = SourceKernel(
            node.name, node, language, jit=jit, direct=direct_names(known)
        )
        for one in (*(each for _, each in decorators), *applied_to(node.name, tree)):
            kernel.launches += configurations(one, known, scope)
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        names: list[str] = []
        if isinstance(call.func, ast.Subscript):
            names = scope.chosen(call)
        elif isinstance(call.func, ast.Attribute) and call.func.attr in ("run", "warmup"):
            names = [dotted_name(call.func.value)]
        for name in names:
            if name in found:
                found[name].launches.append(read_launch(call, found[name], scope))
    return sorted(found.values(), key=lambda kernel: kernel.node.lineno)


def compiled_by_call(tree: ast.Module, known: dict[str, str]) -> dict[str, str]:
    """Functions that `triton.jit(function)` compiles, with the compiler's name."""
    return {
        dotted_name(node.args[0]): full_name(node, known)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and is_jit(full_name(node, known)) and node.args
    }


def applied_to(name: str, tree: ast.Module) -> Iterator[ast.expr]:
    """What stands for a decorator in `kernel = autotune(…)(kernel)`."""
    for node in tree.body:
        call = node.value if isinstance(node, ast.Assign) else None
        if isinstance(call, ast.Call) and [dotted_name(one) for one in call.args] == [name]:
            yield call.func


def find_unread(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Kernels that are made at run time: (line, what is compiled), of what no function is read."""
    known, _ = names_of(tree)
    named = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if is_jit(full_name(node, known)) and node.args and dotted_name(node.args[0]) not in named:
            yield node.lineno, ast.unparse(node)
        for one in (*node.args, *(k.value for k in node.keywords)):
            text = one.value if isinstance(one, ast.Constant) else None
            if isinstance(text, str) and "triton.jit\n" in text and "def " in text:
                yield node.lineno, f"the text that {dotted_name(node.func) or 'a call'} takes"


def configurations(decorator: ast.AST, known: dict[str, str], scope: FileScope) -> Iterator[Launch]:
    """The configurations that an autotuner tries, and the sizes that heuristics give."""
    if not isinstance(decorator, ast.Call):
        return
    name = full_name(decorator, known)
    if name.endswith(".heuristics") and decorator.args:
        table: ast.expr | None = decorator.args[0]
        if isinstance(table, ast.Name):
            table = scope.constants.get(table.id, table)
        yield Launch(decorator.lineno, numbers_in(table, scope, {}), tried=True)
        return
    for root, names, inner in behind(decorator, known, scope):
        for node, held in with_loops(root, inner):
            if isinstance(node, ast.Call) and full_name(node, names) == "triton.Config":
                kwargs = next((k.value for k in node.keywords if k.arg == "kwargs"), None)
                table = node.args[0] if node.args else kwargs
                options = tuple(k.arg for k in node.keywords if k.arg and k.arg not in TUNED)
                yield Launch(node.lineno, numbers_in(table, inner, held), options, tried=True)


def behind(
    decorator: ast.Call, known: dict[str, str], scope: FileScope
) -> Iterator[tuple[ast.AST, dict[str, str], FileScope]]:
    """A decorator, and what of the project its configurations come from, with each file's names."""
    parts: list[tuple[ast.AST, dict[str, str], FileScope]] = [(decorator, known, scope)]
    seen: set[int] = set()
    for part in parts:  # which grows
        yield part
        root, _, inner = part
        for node in ast.walk(root) if len(parts) <= PARTS else ():
            if not isinstance(node, (ast.Name, ast.Attribute)):
                continue
            for place in inner.files.places(dotted_name(node), inner.path, inner.tree):
                follows = isinstance(place.node, (ast.FunctionDef, ast.Assign, ast.AnnAssign))
                if place.node is None or not follows or id(place.node) in seen:
                    continue
                seen.add(id(place.node))
                own = place.tree is inner.tree
                there = inner if own else FileScope(place.tree, place.path, inner.files)
                parts.append((place.node, part[1] if own else names_of(place.tree)[0], there))


def with_loops(
    root: ast.AST, scope: FileScope, held: dict[str, int] | None = None
) -> Iterator[tuple[ast.AST, dict[str, int]]]:
    """Every node with the greatest values of the loops and comprehensions around it."""
    held = held or {}
    if isinstance(root, (ast.ListComp, ast.GeneratorExp)):
        for one in root.generators:
            held = held | count_loops(one.target, one.iter, scope, held)
    elif isinstance(root, ast.For):
        held = held | count_loops(root.target, root.iter, scope, held)
    yield root, held
    for child in ast.iter_child_nodes(root):
        yield from with_loops(child, scope, held)


def count_loops(
    target: ast.expr, over: ast.expr, scope: FileScope, held: dict[str, int]
) -> dict[str, int]:
    """The greatest values that loop variables take."""
    if isinstance(over, ast.Name):
        over = scope.constants.get(over.id, over)
    if isinstance(over, ast.Call) and dotted_name(over.func) == "range" and over.args:
        end = over.args[1] if len(over.args) > 1 else over.args[0]
        most = bound_of(end, scope, held)
        return {dotted_name(target): most - 1} if most is not None else {}
    if not isinstance(over, (ast.List, ast.Tuple)):
        return {}
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    found: dict[str, int] = {}
    for place, name in enumerate(names):
        parts = [
            one.elts[place] if isinstance(target, ast.Tuple) and isinstance(one, ast.Tuple)
            and place < len(one.elts) else one
            for one in over.elts
        ]  # fmt: skip
        known = [most for one in parts if (most := bound_of(one, scope, held)) is not None]
        if known:
            found[dotted_name(name)] = max(known)
    return found


def bound_of(
    node: ast.expr, scope: FileScope, held: dict[str, int], inside: ast.FunctionDef | None = None
) -> int | None:
    """The greatest value of an expression inside of loops; True and False as they are."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return node.value
    before = scope.constants
    scope.constants = before | {name: ast.Constant(value) for name, value in held.items()}
    try:
        return greatest(node, scope, inside)
    finally:
        scope.constants = before


def numbers_in(table: ast.AST | None, scope: FileScope, held: dict[str, int]) -> dict[str, int]:
    """The numbers of a dictionary, of functions what they return."""
    pairs: list[tuple[object, ast.expr]] = []
    if isinstance(table, ast.Dict):
        pairs = [(getattr(key, "value", None), value)
                 for key, value in zip(table.keys, table.values, strict=True)]  # fmt: skip
    elif isinstance(table, ast.Call) and dotted_name(table.func) == "dict":
        pairs = [(one.arg, one.value) for one in table.keywords]
    found: dict[str, int] = {}
    for key, value in pairs:
        inner = value.body if isinstance(value, ast.Lambda) else value
        most = bound_of(inner, scope, held)
        if isinstance(key, str) and most is not None:
            found[key] = most
    return found


def programs_of(
    grid: ast.expr | None, scope: FileScope, inside: ast.FunctionDef | None, deep: int = DEEP
) -> int | None:
    """How many programs a grid has at most; None where the source does not say it."""
    if isinstance(grid, ast.Name) and inside is not None:
        values = [value for value, place in find_assigned(grid.id, inside) if place is None]
        alone = len(values) == 1 and deep
        return programs_of(values[0], scope, inside, deep - 1) if alone else None
    if isinstance(grid, ast.Lambda):
        return programs_of(grid.body, scope, inside, deep)
    if not isinstance(grid, (ast.Tuple, ast.List)):
        return greatest(grid, scope, inside)
    counts = [greatest(one, scope, inside) for one in grid.elts]
    return prod(one for one in counts if one is not None) if None not in counts else None


def read_launch(node: ast.Call, kernel: SourceKernel, scope: FileScope) -> Launch:
    """What one launch says in numbers; of a value that is computed, the greatest it can have."""
    inside = scope.function_of(node)
    values = list(given_at(node, kernel))
    numbers = {
        name: most
        for name, value in values
        if (most := bound_of(value, scope, {}, inside)) is not None
    }
    grid = node.func.slice if isinstance(node.func, ast.Subscript) else dict(values).get("grid")
    words = [inside.name] if inside is not None else []
    for _, value in values if inside else ():
        words += [
            ast.unparse(one)
            for one, _ in find_assigned(dotted_name(value), inside or ast.Module([], []))
        ]
    programs = programs_of(grid, scope, inside)
    names = tuple(name for name, _ in values)
    if any(isinstance(one, ast.Starred) for one in node.args) or None in [
        k.arg for k in node.keywords
    ]:
        names += tuple(a.arg for a in kernel.node.args.args if a.arg not in names)
    return Launch(node.lineno, numbers, names, programs, "\n".join(words))


def given_at(node: ast.Call, kernel: SourceKernel) -> Iterator[tuple[str, ast.expr]]:
    """The parameters that a launch gives a value, each with it.

    What stands behind `*x.stride()` is counted from the end, where no parameter is left to others.
    """
    named = {k.arg: k.value for k in node.keywords if k.arg}
    yield from named.items()
    left = [a.arg for a in kernel.node.args.args if a.arg not in named]
    stars = [at for at, one in enumerate(node.args) if isinstance(one, ast.Starred)]
    first, last = (stars[0], stars[-1] + 1) if stars else (len(node.args), len(node.args))
    yield from zip(left, node.args[:first], strict=False)
    own = {name for one in kernel.launches if one.tried for name in one.numbers}
    if stars and not own.intersection(left) and not kernel.node.args.defaults:
        yield from zip(reversed(left), reversed(node.args[last:]), strict=False)
