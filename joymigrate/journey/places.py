"""The places of a project that a rewrite changed, and which of them a run reached.

A place is a statement: of a compound one its head. What is no Python, and an import that the
rewrite added, is no place; files of other kinds, and those that this Python can't read, are named
beside them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from joymigrate.journey import original
from joymigrate.ledger import Ledger, Step

TOLD = 50  # places that the result names one by one


@dataclass(frozen=True, slots=True)
class ChangedLines:
    """Lines `first` to `last` of a file, counted from 1; `text` is the first of them."""

    path: str  # below the project, POSIX
    first: int
    last: int
    text: str


@dataclass(frozen=True, slots=True)
class ChangedPlaces:
    """What the rewrites changed: statements of Python files, and files of other kinds."""

    statements: tuple[ChangedLines, ...]
    others: tuple[str, ...]

    def lines(self, project: Path) -> dict[str, dict[int, int]]:
        """By absolute path: each line with the number of its place."""
        found: dict[str, dict[int, int]] = {}
        for number, place in enumerate(self.statements):
            rows = found.setdefault(str((project / place.path).resolve()), {})
            rows.update(dict.fromkeys(range(place.first, place.last + 1), number))
        return found

    def figures(self, reached: set[int]) -> dict[str, Any]:
        """How many places ran, and those that did not."""
        rest = [one for number, one in enumerate(self.statements) if number not in reached]
        number = len(self.statements)
        return {
            "places": number,
            "places_run": number - len(rest),
            "reached_pct": 100.0 * (number - len(rest)) / number if number else None,
            "not_run": [
                {"path": one.path, "line": one.first, "text": one.text} for one in rest[:TOLD]
            ],
            "not_python": list(self.others),
        }


def of_project(project: Path) -> ChangedPlaces:
    """What the rewrites that hold changed in a project."""
    ledger = Ledger.of(project)
    return find(ledger, original.rewrites(ledger, project), project)


def find(ledger: Ledger, steps: Sequence[Step], project: Path) -> ChangedPlaces:
    """The places of the rewrites `steps`, oldest first, as the files are now.

    A file that was rewritten twice is held against its text before the first time; one that the
    rewrite made (its helper) is none of the project's.
    """
    before: dict[str, bytes | None] = {}
    for step in steps:
        for entry in original.entries(ledger, step):
            path = ledger.root / entry.path
            if not path.is_relative_to(project) or not path.is_file():
                continue
            name = path.relative_to(project).as_posix()
            if name not in before:
                before[name] = (
                    None if entry.before is None else read_before(ledger, step, entry.before)
                )
    statements: list[ChangedLines] = []
    others: list[str] = []
    for name, old in sorted(before.items()):
        if old is None:
            continue
        found = find_changes(name, old, (project / name).read_bytes())
        if found is None:
            others.append(name)
        else:
            statements += found
    return ChangedPlaces(tuple(statements), tuple(others))


def read_before(ledger: Ledger, step: Step, name: str) -> bytes:
    """The text of a file before a step."""
    return (ledger.folder(step.id) / "before" / name).read_bytes()


def find_changes(name: str, old: bytes, new: bytes) -> list[ChangedLines] | None:
    """The statements of a Python file that differ from `old`, in order; None for other files."""
    if not name.endswith(".py"):
        return None
    try:
        tree = ast.parse(new)
    except (SyntaxError, ValueError):
        return None
    return list(differing(name, tree, old, new))


def differing(name: str, tree: ast.Module, old: bytes, new: bytes) -> Iterator[ChangedLines]:
    """The statements of `tree`, which was read from `new`, whose heads hold lines not in `old`."""
    before, now = old.splitlines(), new.splitlines()
    replaced: set[int] = set()
    added: set[int] = set()  # an import that replaces none is the rewrite's own
    for tag, a, b, first, last in SequenceMatcher(None, before, now, autojunk=False).get_opcodes():
        if tag != "equal":
            from_import = any(
                row.lstrip().startswith((b"import ", b"from ")) for row in before[a:b]
            )
            (replaced if from_import else added).update(range(first + 1, last + 1))
    heads = {line: node for node in ast.walk(tree) for line in head(node)}  # the innermost is last
    seen: set[int] = set()
    for line in sorted(replaced | added):
        node = heads.get(line)
        if node is None or id(node) in seen or (line in added and is_import(node)):
            continue
        seen.add(id(node))
        rows = head(node)
        text = now[line - 1].decode("utf-8", errors="replace").strip()
        yield ChangedLines(name, rows.start, rows.stop - 1, text)


def is_import(node: ast.AST) -> bool:
    """Whether a statement imports."""
    return isinstance(node, ast.Import | ast.ImportFrom)


def head(node: ast.AST) -> range:
    """The lines of a statement; of a compound one those above its body. Text alone never runs.

    `except …:` and `case …:` are heads of their own.
    """
    if isinstance(node, ast.match_case):
        return range(node.pattern.lineno, max(node.pattern.lineno + 1, node.body[0].lineno))
    if not isinstance(node, ast.stmt | ast.ExceptHandler) or is_text(node):
        return range(0)
    end = node.end_lineno or node.lineno
    if isinstance(node, ast.Match):
        end = max(node.lineno, node.cases[0].pattern.lineno - 1)
    body: Any = getattr(node, "body", None)
    if isinstance(body, list) and body:
        end = max(node.lineno, body[0].lineno - 1)
    decorators: Any = getattr(node, "decorator_list", [])
    return range(min([node.lineno, *(one.lineno for one in decorators)]), end + 1)


def is_text(node: ast.AST) -> bool:
    """Whether a statement is a string alone, such as a docstring."""
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
