"""Questions about a C++ syntax tree, and the error of what has no translation."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.profile.port.cpp import CppFunction, declarator_of, text_of


class Untranslated(JoyError):
    """A part of C++ that has no translation here."""

    def __init__(self, what: str) -> None:
        super().__init__(what)


@dataclass(slots=True)
class FunctionFrame:
    """One function while it is written: names in scope, and what `continue` has to do first."""

    scopes: list[dict[str, str]]
    used: set[str]
    kernel: bool = False
    updates: list[list[str]] = field(default_factory=list)
    frozen: set[str] = field(default_factory=set)  # references: an assignment would reach outside
    dropped: set[str] = field(default_factory=set)
    arrays: set[str] = field(default_factory=set)
    optional: set[str] = field(default_factory=set)  # `*x` is their value, no element
    whole: set[str] = field(default_factory=set)  # variables and arrays of whole numbers
    real: set[str] = field(default_factory=set)
    returns: str = ""
    shared: set[str] = field(default_factory=set)  # what all threads of a block see


def at(node: Any, what: str) -> str:
    """What could not be translated, with its line."""
    return f"line {node.start_point[0] + 1}: {what}"


def indent(lines: list[str]) -> list[str]:
    """Lines one level deeper."""
    return [f"    {line}" for line in lines]


def last_identifier(node: Any) -> str:
    """The name inside of a declarator."""
    if node.type in ("identifier", "field_identifier", "type_identifier"):
        return text_of(node)
    if node.type == "array_declarator":
        return last_identifier(node.child_by_field_name("declarator"))
    names = [
        c for c in node.named_children if "identifier" in c.type or c.type.endswith("declarator")
    ]
    if not names:
        raise Untranslated(at(node, f"a declaration '{text_of(node)[:40]}'"))
    return last_identifier(names[-1] if node.type != "init_declarator" else names[0])


def inner_is_plain(node: Any) -> bool:
    """Whether a function returns its type itself, no pointer or reference to it."""
    return bool(node.child_by_field_name("declarator").type == "function_declarator")


def parameters_of(lambda_: Any) -> list[Any]:
    """The parameters of a lambda."""
    inner = lambda_.child_by_field_name("declarator")
    return list(inner.child_by_field_name("parameters").named_children) if inner is not None else []


def fits(function: CppFunction, count: int) -> bool:
    """Whether a function can be called with so many arguments."""
    inner = declarator_of(function.node)
    rows = [
        c for c in inner.child_by_field_name("parameters").named_children if c.type != "comment"
    ]
    least = sum(c.type == "parameter_declaration" for c in rows)
    return bool(least <= count <= len(rows))


def differ(one: CppFunction, other: CppFunction) -> bool:
    """Whether two definitions of one file have different bodies: their types decide, unseen here.
    Those of two files are one of the CPU and one of the GPU."""
    roots = []
    for node in (one.node, other.node):
        while node.parent is not None:
            node = node.parent
        roots.append(node)
    bodies = (" ".join(text_of(f.node.child_by_field_name("body")).split()) for f in (one, other))
    return roots[0] == roots[1] and len(set(bodies)) > 1


def assigned_names(body: Any) -> set[str]:
    """Names that are assigned anywhere inside."""
    found: set[str] = set()
    todo = [body]
    while todo:
        node = todo.pop()
        todo += node.named_children
        if node.type in ("assignment_expression", "update_expression"):
            left = node.child_by_field_name("left") or node.child_by_field_name("argument")
            if left is not None and left.type == "identifier":
                found.add(text_of(left))
    return found


def uses_grid(body: Any) -> bool:
    """Whether a function asks where its thread stands."""
    return bool(
        re.search(r"\b(threadIdx|blockIdx|blockDim|gridDim|__syncthreads)\b", text_of(body))
    )


def plainly_whole(node: Any) -> bool:
    """Whether a value is a whole number as it is written."""
    return node.type == "number_literal" and type_of(text_of(node)) is int


def type_of(text: str) -> type:
    """The type of a number literal."""
    return float if re.search(r"[.eEfF]", text) and not text.lower().startswith("0x") else int
