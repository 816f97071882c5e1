"""A kernel's body without early returns, so that a compiler can put it into a loop.

A function that returns in its middle is called, not put in its caller's place; the chip's compiler
does not take pointers through a call. `if C: return` becomes `if C: pass` with the rest in `else`.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable

INDENT = "    "


class Unliftable(Exception):
    """A return that stands where the rest can't be put behind it: in a loop, or beside `elif`."""


def returns(nodes: list[ast.stmt]) -> bool:
    """Whether statements hold a return of their own."""
    return any(isinstance(one, ast.Return) for node in nodes for one in ast.walk(node))


def without_returns(body: str, parameters: Iterable[str] = ()) -> str:
    """The text of a function's body in which nothing returns early. Raises Unliftable.

    What stands in an `else` may give a name no other type than it had before: names of before that
    are given anew there get another one.
    """
    text = textwrap.dedent(body)
    # Triton's functions may stand in a class or a function: parse the body alone.
    tree = ast.parse("def body():\n" + textwrap.indent(text, INDENT))
    assert isinstance(tree.body[0], ast.FunctionDef)
    if not returns(tree.body[0].body):
        return body
    return (
        textwrap.indent("\n".join(lift_returns(text.splitlines(), set(parameters))), INDENT) + "\n"
    )


def parse_lines(lines: list[str]) -> list[ast.stmt]:
    """The statements of some lines at the left margin; their lines count from 2."""
    tree = ast.parse("def body():\n" + textwrap.indent("\n".join([*lines, "pass"]), INDENT))
    assert isinstance(tree.body[0], ast.FunctionDef)
    return tree.body[0].body[:-1]


def lift_returns(lines: list[str], known: set[str]) -> list[str]:
    """Lines at the left margin without returns; `known` names had a value before."""
    known = set(known)
    for node in parse_lines(lines):
        if not returns([node]):
            known |= find_stored(node)
            continue
        begin, end = node.lineno - 2, (node.end_lineno or 0) - 1
        before, own, rest = lines[:begin], lines[begin:end], lines[end:]
        if isinstance(node, ast.Return):
            return [*before, "pass"]  # nothing behind it runs
        if not isinstance(node, ast.If):
            raise Unliftable(f"it returns inside a {type(node).__name__.lower()} loop")
        return [*before, *split(node, own, rest, known)]
    return lines


def find_stored(node: ast.AST) -> set[str]:
    """Names that are given a value."""
    return {one.id for one in ast.walk(node)
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}  # fmt: skip


def rename_stored(lines: list[str], known: set[str]) -> list[str]:
    """Lines in which names of before that are given anew are others, with their first values."""
    nodes = parse_lines(lines)
    again = sorted({name for node in nodes for name in find_stored(node)} & known)
    taken = {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}
    names = {name: fresh(name, taken | known) for name in again}
    data = [line.encode() for line in lines]
    found = [one for node in nodes for one in ast.walk(node)
             if isinstance(one, ast.Name) and one.id in names]  # fmt: skip
    for one in sorted(found, key=lambda one: (one.lineno, one.col_offset), reverse=True):
        line, at = one.lineno - 2, one.col_offset - len(INDENT)
        data[line] = (
            data[line][:at] + names[one.id].encode() + data[line][at + len(one.id.encode()) :]
        )
    return [f"{new} = {old}" for old, new in names.items()] + [line.decode() for line in data]


def fresh(name: str, taken: set[str]) -> str:
    """A name that nobody uses."""
    while name in taken:
        name += "_"
    return name


def split(node: ast.If, own: list[str], rest: list[str], known: set[str]) -> list[str]:
    """An `if` that returns, with the rest put behind each way that does not."""
    first = node.body[0].lineno - node.lineno
    if first == 0:
        raise Unliftable("it returns on the line of an `if`")
    last = (node.body[-1].end_lineno or 0) - node.lineno + 1
    then = textwrap.dedent("\n".join(own[first:last])).splitlines()
    other: list[str] = []
    if node.orelse:
        if own[last].strip().startswith("elif"):
            raise Unliftable("it returns beside an `elif`")
        other = textwrap.dedent("\n".join(own[last + 1 :])).splitlines()
    head = own[:first]
    again = rename_stored(rest, known) if rest else []
    if not isinstance(
        node.body[-1], ast.Return
    ):  # it goes on behind some way through the first part
        then = [*then, *again]
    made = [*head, *indent(lift_returns(then, known)), "else:"]
    return [*made, *indent(lift_returns([*other, *again], known) or ["pass"])]


def indent(lines: list[str]) -> list[str]:
    """Lines one step to the right."""
    return textwrap.indent("\n".join(lines), INDENT).splitlines() or [INDENT + "pass"]
