"""What an edit is looked at with: its outermost function, or its statement outside of functions."""

from __future__ import annotations

import ast
import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field

from joymigrate.rewrite.module import Module


@dataclass(slots=True)
class Unit:
    """An outermost function, a statement outside of functions, or the marks of a class.

    Spans are text offsets.
    """

    node: ast.stmt
    start: int
    end: int
    moving: list[int] = field(default_factory=list)  # findings that would be written


class Units:
    """The units of a file, in order."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.all = sorted(map(self._make, find_units(module.tree.body)), key=lambda u: u.start)
        self._starts = [unit.start for unit in self.all]

    def _make(self, node: ast.stmt) -> Unit:
        first: ast.AST = next(iter(getattr(node, "decorator_list", ())), node)
        # Of a class its marks alone: `@skipIf(…)`.
        end = self.module.span(node)[0 if isinstance(node, ast.ClassDef) else 1]
        return Unit(node, self.module.span(first)[0], end)

    def at(self, offset: int) -> Unit | None:
        """The unit that holds an offset."""
        at = bisect.bisect_right(self._starts, offset) - 1
        return self.all[at] if at >= 0 and offset < self.all[at].end else None


def find_units(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Functions and statements at the top level, those of classes, and classes with marks."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            if node.decorator_list:
                yield node
            yield from find_units(node.body)
        else:
            yield node
