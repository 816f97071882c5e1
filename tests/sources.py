"""The source files of joymigrate, for tests that look at all of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import joymigrate

ROOT = Path(joymigrate.__file__).parent


@cache
def sources() -> tuple[str, ...]:
    """Every Python file below the package, without the rules: `run/train/job.py`."""
    paths = (path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))
    return tuple(sorted(path for path in paths if "_rules" not in path.split("/")))


def parse(path: str) -> ast.Module:
    """The syntax tree of one of them. Keep what you need of it: all of them are large."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Every statement, also those inside of others, in the order of the text. Expressions, nine
    tenths of a tree, hold none."""
    rest: list[ast.AST] = tree.body[::-1]  # type: ignore[assignment]
    while rest:
        node = rest.pop()
        yield node
        for name in ("finalbody", "orelse", "handlers", "cases", "body"):
            rest += getattr(node, name, ())[::-1]
