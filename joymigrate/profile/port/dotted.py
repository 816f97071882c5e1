"""Dotted names in a syntax tree."""

from __future__ import annotations

import ast


def dotted_name(node: ast.AST) -> str:
    """`a.b.c` of a name or attribute; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = dotted_name(node.value)
        return f"{left}.{node.attr}" if left else ""
    return ""
