"""Dimensions whose rows are followed through a graph, and why a row may not be told apart.

Each dimension of each tensor is a product of atoms. An atom with an axis ("row": the candidates,
"user", a sequence's tokens) numbers that axis in order: an element depends on that row only. Atoms
without one are the same for all rows. A tensor may number one axis once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

INTERACTS, UNKNOWN = "interacts", "unknown"
ROW = "row"  # a user has several of them, a token one
Expr = Any  # of sympy: a size


@dataclass
class RowFault(Exception):
    """Why rows cannot be told apart; `op` and `line` say where in the program."""

    verdict: str
    why: str
    op: str = ""
    line: str = ""


@dataclass(frozen=True)
class Atom:
    """A part of a dimension: how many, and of which axis it numbers the rows."""

    size: Expr
    axis: str | None = None


Dim = tuple[Atom, ...]
Dims = tuple[Dim, ...]


@dataclass(frozen=True)
class NodeValue:
    """What is known of a node. `expr`: it is a number (a size), not a tensor. `kind`: what its
    elements mean where they are places: ("place", axis) numbers the axis' rows, ("bounds",
    "starts", "ends" or "lengths", tokens, axis) cut tokens, ("zero",) is one zero."""

    dims: Dims = ()
    kind: tuple[Any, ...] | None = None
    expr: Expr | None = None
    fault: RowFault | None = None


def interacts(why: str) -> NoReturn:
    """Rows meet here."""
    raise RowFault(INTERACTS, why)


def expr_of(number: Any) -> Expr:
    """A size as an expression."""
    import sympy

    return number.node.expr if hasattr(number, "node") else sympy.sympify(number)


def whole(quotient: Expr) -> Expr | None:
    """The quotient where it is whole for all sizes, else None."""
    import sympy

    quotient = sympy.cancel(quotient)
    return quotient if sympy.fraction(sympy.together(quotient))[1] == 1 else None


def size_of(dim: Dim) -> Expr:
    """The length of a dimension."""
    return math.prod([atom.size for atom in dim], start=expr_of(1))


def tags(dims: Iterable[Dim]) -> list[str]:
    """The axes that these dimensions number."""
    return [atom.axis for dim in dims for atom in dim if atom.axis]


def forbid(why: str, *dims: Dim) -> None:
    """These dimensions may number no rows."""
    if tags(dims):
        interacts(why)


def tidy(dim: Iterable[Atom]) -> Dim:
    """Without atoms of size one; neighbours without an axis as one."""
    import sympy

    out: list[Atom] = []
    for atom in dim:
        if out and not atom.axis and not out[-1].axis:
            out[-1] = Atom(sympy.expand(out[-1].size * atom.size))
        elif atom.size != 1 or atom.axis:
            out.append(atom)
    return tuple(out)


def broadcast(*many: Sequence[Dim]) -> Dims:
    """Dimensions of an elementwise result."""
    out: list[Dim] = []
    for place in range(-max((len(dims) for dims in many), default=0), 0):
        there = [dims[place] for dims in many if len(dims) >= -place and dims[place]]
        if tags(there) and any(one != there[0] for one in there):
            interacts("rows of another order or count meet in one dimension")
        out.append(there[0] if there else ())
    return tuple(out)


def regroup(dims: Sequence[Dim], sizes: Sequence[Expr]) -> Dims:
    """A reshape: the atoms in order, grouped anew; only atoms without an axis may be split."""
    pending = [atom for dim in dims for atom in dim]
    out: list[Dim] = []
    for size in sizes:
        left, dim = size, list[Atom]()
        while left != 1:
            atom = pending.pop(0) if pending else interacts("the reshape does not keep rows whole")
            if (rest := whole(left / atom.size)) is not None:
                dim.append(atom)
                left = rest
            elif not atom.axis and (rest := whole(atom.size / left)) is not None:
                dim.append(Atom(left))
                left = expr_of(1)
                pending.insert(0, Atom(rest))
            else:
                interacts("the reshape cuts across rows")
        out.append(tuple(dim))
    return tuple(out)
