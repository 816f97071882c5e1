"""The branches of a kernel that its launches leave open, and whether each one was compiled.

A flag, a choice or a pointer that may be missing decides while a kernel is compiled which of its
statements there are. What no launch says has every value; a combination that Triton's own front end
refuses can be launched nowhere, but a statement that only such combinations reach was not compiled.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

from joymigrate.profile.port.draw import Role

MOST = 64  # combinations of one launch that are compiled
TYPES = re.compile(r"\b(dtype|element_ty|is_(fp|bf|int|floating)\w*)\b")
REALS = ("float32", "float16", "bfloat16")
Combination = Mapping[str, Any]


@dataclass(slots=True)
class CompiledLines:
    """Lines of statements that the front end came to, in combinations that it took and refused."""

    now: set[int] = field(default_factory=set)
    taken: set[int] = field(default_factory=set)
    refused: dict[int, tuple[Combination, str]] = field(default_factory=dict)

    def keep(self, values: Combination, fault: str = "", asserted: int = 0) -> None:
        """Add the lines of one combination; `asserted` is a line that forbids it by itself."""
        if not fault:
            self.taken |= self.now
        for line in self.now - {asserted} if fault else ():
            self.refused.setdefault(line, (values, fault))
        self.now = set()

    def left(self, text: str) -> str:
        """The first statement that only refused combinations reach, with the refusal; or ""."""
        lines = text.splitlines()
        for line in sorted(set(self.refused) - self.taken):
            values, fault = self.refused[line]
            said = ", ".join(f"{name}={value}" for name, value in values.items())
            return f"`{lines[line - 1].strip()}` was not compiled ({said}): {fault}"
        return ""

    def unseen(self, tree: ast.AST, names: Iterable[str]) -> ast.If | None:
        """The first `if` with a side that was never compiled, of those that ask for `names`."""
        asked = set(names)
        for node in ast.walk(tree):
            if not isinstance(node, ast.If) or node.lineno not in self.taken:
                continue
            words = {one.id for one in ast.walk(node.test) if isinstance(one, ast.Name)}
            if not words & asked and not TYPES.search(ast.unparse(node.test)):
                continue
            if any(side and side[0].lineno not in self.taken for side in (node.body, node.orelse)):
                return node
        return None


def open_values(roles: Iterable[Role], said: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """The values that decide branches, of each parameter that no launch says."""
    left = [one for one in roles if one.name not in set(said)]
    found: dict[str, tuple[Any, ...]] = {}
    for role in left:
        if role.kind == "flag" and role.constexpr:
            found[role.name] = (False, True)
        elif role.kind == "choice" and role.constexpr:
            whole = [one for one in role.value if type(one) is int]
            found[role.name] = (*role.value, *([max(whole) + 1] if whole else ()))
        elif role.nullable:
            found[role.name] = (..., None)  # as it is drawn, or nothing
    return found


def asks_types(tree: ast.AST) -> bool:
    """Whether an `if` asks for the type of a value."""
    tests = (node.test for node in ast.walk(tree) if isinstance(node, ast.If))
    return any(TYPES.search(ast.unparse(one)) for one in tests)


def combine(values: Mapping[str, tuple[Any, ...]]) -> Iterator[Combination]:
    """Each combination."""
    return (dict(zip(values, one, strict=True)) for one in product(*values.values()))


def too_many(values: Mapping[str, tuple[Any, ...]]) -> str:
    """Why the combinations are not compiled, or ""."""
    count = prod(len(one) for one in values.values())
    names = ", ".join(values)
    said = f"no launch says {names}: {count} combinations, of which {MOST} would be compiled"
    return said if count > MOST else ""
