"""Dotted names in a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Collection


def dotted_name(node: ast.AST) -> str:
    """`a.b.c` of a name or attribute; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = dotted_name(node.value)
        return f"{left}.{node.attr}" if left else ""
    return ""


def name_below(node: ast.AST, language: Collection[str]) -> str:
    """`load` of `tl.load`, where `tl` is one of a language's names; empty for any other name."""
    first, _, rest = dotted_name(node).partition(".")
    return rest if first in language else ""
