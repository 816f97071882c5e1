"""What new content of a file must pass before it is written.

It is parsed by this Python, the helper is imported where its name is used, and no expression that
a rewrite touched holds both devices. What is at fault is left out, as a group and with the reason;
where nothing can be told apart, the file is not written.
"""

from __future__ import annotations

import ast
import bisect
import itertools
import json
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from joymigrate.language import Text
from joymigrate.model import Edit, Finding
from joymigrate.rewrite.device_places import SHOWN, TALK
from joymigrate.rewrite.module import HELPER_NAMES
from joymigrate.rewrite.source import SourceText, Unreadable, apply_edits, decode

PYTHON = (".py", ".pyi", ".pyw")
CHOICES = ("choices", "enum_values")  # keywords whose values name both devices by right
OFFERING = ("Choice", "DEFINE_enum", "DEFINE_multi_enum")
BLOCKS = (ast.stmt, ast.excepthandler, ast.withitem, ast.arguments, ast.match_case)
SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Raise, ast.Assert)


@dataclass(frozen=True, slots=True)
class Devices:
    """The device names of origin and target, and whether the helper stands for the target."""

    origin: str
    target: str
    agnostic: bool


@dataclass(frozen=True, slots=True)
class ContentProblem:
    """What is wrong with new content, between which of its bytes; None: nowhere in particular."""

    reason: str
    span: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Proven:
    """Content that stands, the findings in it, and those that were left out with the reason."""

    content: bytes
    findings: tuple[Finding, ...]
    left: tuple[tuple[Finding, str], ...] = ()


def prove(path: str, before: bytes, findings: Iterable[Finding], devices: Devices) -> Proven:
    """Apply the findings' edits as far as the result stands."""
    kept = list(findings)
    left: list[tuple[Finding, str]] = []
    while kept:
        edits = list(dict.fromkeys(edit for finding in kept for edit in finding.edits))
        after = apply_edits(before, edits)
        problem = check(path, before, after, edits, devices)
        if problem is None:
            return Proven(after, tuple(kept), tuple(left))
        guilty = at_fault(kept, edits, problem) or kept
        left += [(each, problem.reason) for each in guilty]
        names = {id(each) for each in guilty}
        kept = [each for each in kept if id(each) not in names]
        if not any(each.needs for each in kept):
            kept = [each for each in kept if each.rule != "JM001" or not each.after]
    return Proven(before, (), tuple(left))


def at_fault(findings: list[Finding], edits: list[Edit], problem: ContentProblem) -> list[Finding]:
    """Findings with an edit where the problem is, and those of the same groups."""
    if problem.span is None:
        return []
    first, last = problem.span
    found = [
        each
        for each in findings
        if each.rule != "JM001"
        and any(first <= move_offset(edit.start, edits) <= last for edit in each.edits)
    ]
    groups = {each.group for each in found if each.group}
    return [each for each in findings if each in found or (each.group and each.group in groups)]


def move_offset(offset: int, edits: list[Edit]) -> int:
    """Where an offset of the old content lies in the new one."""
    before = (edit for edit in edits if edit.start < offset)
    return offset + sum(len(edit.text) - (edit.end - edit.start) for edit in before)


def check(
    path: str, before: bytes, after: bytes, edits: list[Edit], devices: Devices
) -> ContentProblem | None:
    """What is wrong with the new content of a file; None when nothing is."""
    if path.endswith((".json", ".ipynb")):
        if not valid_json(after) and valid_json(before):
            return ContentProblem(Text("not written: the result is no valid JSON"))
        return None
    if not path.endswith(PYTHON):
        return None
    try:
        source = decode(path, after, python=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source.text)
    except (SyntaxError, ValueError, Unreadable, RecursionError, MemoryError) as error:
        reason = Text("not written: the result does not parse ({problem})", problem=str(error))
        line = getattr(error, "lineno", None)
        return ContentProblem(reason, line_span(after, line) if isinstance(line, int) else None)
    if devices.agnostic and uses_unbound_helper(tree):
        return ContentProblem(Text("not written: the helper would be used without its import"))
    if devices.origin == devices.target:
        return None
    return find_mixed(source, tree, edits, devices)


def valid_json(data: bytes) -> bool:
    """Whether bytes are JSON."""
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def line_span(data: bytes, line: int) -> tuple[int, int]:
    """Bytes of a line, counted from 1."""
    lines = data.splitlines(keepends=True)
    start = sum(map(len, lines[: line - 1]))
    return start, start + (len(lines[line - 1]) if line <= len(lines) else 0)


def uses_unbound_helper(tree: ast.Module) -> bool:
    """Whether a module uses the helper's name without any statement that binds it."""
    used = bound = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in HELPER_NAMES:
            if not isinstance(node.ctx, ast.Load):
                return False
            used = True
        elif isinstance(node, ast.alias):
            bound = bound or (node.asname or node.name) in HELPER_NAMES
        elif isinstance(node, ast.arg) and node.arg in HELPER_NAMES:
            return False
    return used and not bound


def find_mixed(
    source: SourceText, tree: ast.Module, edits: list[Edit], devices: Devices
) -> ContentProblem | None:
    """The first expression with an edit that names both devices, and did not before."""
    places = [(move_offset(edit.start, edits), edit) for edit in edits]
    starts = [0, *itertools.accumulate(map(len, source.data.splitlines(keepends=True)))]
    lines = sorted({bisect.bisect_right(starts, at) for at, _ in places})
    for node in whole_expressions(tree, lines):
        names = set(find_devices(node, devices))
        if len(names) < 2:
            continue
        start, end = bytes_of(source, node)
        inside = [edit for at, edit in places if start <= at <= end]
        if not inside:
            continue
        target = devices.target.encode()
        if any(devices.origin.encode() in edit.text for edit in inside):
            continue  # an option that allows both: the target's value was added
        written = sum(edit.text.count(target) for edit in inside)
        if not devices.agnostic and source.data[start:end].count(target) > written:
            continue  # the program's author wrote both
        reason = Text("an expression of the result would name both devices")
        return ContentProblem(
            reason, with_guard(source, tree, (start, end), [at for at, _ in places])
        )
    return None


def with_guard(
    source: SourceText, tree: ast.Module, span: tuple[int, int], places: list[int]
) -> tuple[int, int]:
    """The outermost `if` around a place whose condition is rewritten as well: a guard that moves
    without what it guards would lead the target into it. The place itself where there is none."""
    around = [span]
    for node in ast.walk(tree):
        if not isinstance(node, ast.If):
            continue
        start, end = bytes_of(source, node)
        first, last = bytes_of(source, node.test)
        if start <= span[0] and span[1] <= end and any(first <= at <= last for at in places):
            around.append((start, end))
    return min(around)


def bytes_of(source: SourceText, node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Where a node stands in the file."""
    return (
        source.to_bytes(source.offset(node.lineno, node.col_offset)),
        source.to_bytes(source.offset(node.end_lineno or 1, node.end_col_offset or 0)),
    )


def whole_expressions(tree: ast.Module, lines: list[int]) -> Iterator[ast.expr | ast.stmt]:
    """Simple statements, conditions, iterables, defaults and decorators, in and around statements
    that hold one of some lines (from 1, in order)."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.stmt, ast.excepthandler)):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            at = bisect.bisect_left(lines, first)
            if at == len(lines) or lines[at] > (node.end_lineno or node.lineno):
                continue
        if isinstance(node, SIMPLE):
            yield node
        elif isinstance(node, (ast.If, ast.While)):
            yield node.test
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            yield node.iter
        elif isinstance(node, ast.withitem):
            yield node.context_expr
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from node.decorator_list
        elif isinstance(node, ast.arguments):
            yield from (each for each in (*node.defaults, *node.kw_defaults) if each is not None)
        if not isinstance(node, SIMPLE):
            todo += (each for each in ast.iter_child_nodes(node) if isinstance(each, BLOCKS))


def label(node: ast.AST) -> bool:
    """Whether a place of a table gets a value under a name: `devices["cuda"] = …`. The name is the
    program's own; where tables are looked up by a device it moves with the lookups."""
    stored = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    return stored and isinstance(node.slice, ast.Constant)  # type: ignore[attr-defined]


def find_devices(node: ast.AST, devices: Devices) -> Iterator[str]:
    """The devices that an expression names: as `torch.<device>`, a method, or a string."""
    todo = [node]
    while todo:
        each = todo.pop()
        if isinstance(each, ast.Call):
            function = getattr(each.func, "attr", getattr(each.func, "id", ""))
            todo += [each.func]
            todo += [
                a
                for a in each.args
                if (function not in TALK or not isinstance(a, ast.Constant))
                and (function not in OFFERING or not isinstance(a, (ast.List, ast.Tuple, ast.Set)))
            ]
            todo += [word.value for word in each.keywords if word.arg not in (*SHOWN, *CHOICES)]
            if isinstance(each.func, ast.Attribute) and not devices.agnostic:
                yield from (d for d in (devices.origin, devices.target) if d == each.func.attr)
            elif isinstance(each.func, ast.Attribute) and each.func.attr == devices.origin:
                yield devices.origin
            continue
        if label(each):
            todo.append(each.value)  # type: ignore[attr-defined]
            continue
        if isinstance(each, ast.Attribute):
            owner = each.value
            if isinstance(owner, ast.Name) and owner.id == "torch":
                yield from (d for d in (devices.origin, devices.target) if d == each.attr)
        elif isinstance(each, ast.Name) and devices.agnostic and each.id in HELPER_NAMES:
            yield devices.target
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            for device in (devices.origin, devices.target):
                if re.fullmatch(rf"{re.escape(device)}(:\d*)?", each.value):
                    yield device
        todo += ast.iter_child_nodes(each)
