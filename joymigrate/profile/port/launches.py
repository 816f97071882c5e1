"""Launches of a kernel against a chip's limits: grids, options, programs that wait."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from joymigrate.profile.port.dotted_names import dotted_name, name_below
from joymigrate.profile.port.find import Launch, SourceKernel
from joymigrate.profile.port.notes import Note

OWN = frozenset(("grid", "warmup"))  # of `kernel.run(…)`
FOLDED = "_OnCores"  # the launcher of a variant: any grid runs on the cores there are


def judge_launches(kernel: SourceKernel, known: dict[str, Any]) -> Iterator[Note]:
    """Notes on every launch."""
    folded = any(dotted_name(one) == FOLDED for one in kernel.node.decorator_list)
    for launch in kernel.launches:
        yield from options(launch, kernel, known)
        if not launch.tried and not folded:
            yield from grids(launch, known)
    yield from waits(kernel, known)


def configure_launches(launches: list[Launch]) -> Iterator[Launch]:
    """Each launch with the numbers of each configuration that an autotuner tries."""
    calls = [one for one in launches if not one.tried]
    tried = [one for one in launches if one.tried]
    if not calls or not tried:
        yield from (*calls, *tried)
        return
    for launch in calls:
        for one in tried:
            yield replace(launch, line=one.line, numbers={**launch.numbers, **one.numbers})


def numbers_of(function: ast.FunctionDef, launch: Launch | None) -> dict[str, int]:
    """What a launch says of the parameters, by their defaults where it gives none.

    The default of a flag holds in a call that leaves it out; of no call nothing is known.
    """
    pairs = zip(reversed(function.args.args), reversed(function.args.defaults), strict=False)
    given = launch.options if launch is not None else ()
    called = launch is not None and not launch.tried
    held = {
        a.arg: d.value for a, d in pairs
        if a.arg not in given and isinstance(d, ast.Constant) and isinstance(d.value, int)
        and (called or not isinstance(d.value, bool))
    }  # fmt: skip
    return held | (launch.numbers if launch is not None else {})


def grids(launch: Launch, known: dict[str, Any]) -> Iterator[Note]:
    """More programs than the chip takes, or as many as it may be."""
    programs = known["limits"]["programs"]
    if launch.programs is None:
        yield Note("note", launch.line, f"the grid may have {programs['value']} programs",
                   programs["help"], programs["source"])  # fmt: skip
    elif launch.programs > programs["value"]:
        yield Note(
            "changes", launch.line,
            f"a grid of {launch.programs} programs; the chip takes {programs['value']}",
            programs["help"], programs["source"],
        )  # fmt: skip


def options(launch: Launch, kernel: SourceKernel, known: dict[str, Any]) -> Iterator[Note]:
    """Launch options without a meaning on the chip, and those that nobody documents."""
    ignored, listed = known.get("ignored", {}), known.get("options", {})
    arguments = kernel.node.args
    own = {a.arg for a in (*arguments.args, *arguments.kwonlyargs)} | OWN
    for name in launch.options:
        if name in ignored.get("names", ()):
            yield Note("note", launch.line, f"{name} means nothing there", "", ignored["source"])
        elif name not in own and name not in listed.get("names", ()) and arguments.kwarg is None:
            yield Note("unknown", launch.line, f"the launch option {name} is in no document",
                       "leave it out if it is a hint", listed.get("source", ""))  # fmt: skip


def waits(kernel: SourceKernel, known: dict[str, Any]) -> Iterator[Note]:
    """Loops that wait for another program, which may have no core yet."""
    programs = known["limits"]["programs"]
    for node in ast.walk(kernel.node):
        if isinstance(node, ast.While) and is_wait(node, kernel.language):
            yield Note(
                "changes", node.lineno, "a program waits here for another one",
                "programs run in turns of as many as there are cores: launch no more, or split "
                "the kernel in two", programs["source"],
            )  # fmt: skip


def is_wait(loop: ast.While, language: frozenset[str]) -> bool:
    """Whether a loop goes on until memory changes by somebody else's hand."""

    def asks(node: ast.AST) -> bool:
        return any(
            reads(one, language) for one in ast.walk(node) if isinstance(one, ast.Call)
        )  # fmt: skip

    if asks(loop.test):
        return True
    tested = {n.id for n in ast.walk(loop.test) if isinstance(n, ast.Name)}
    set_here = [
        node for node in loop.body
        if isinstance(node, ast.Assign) and tested & {dotted_name(one) for one in node.targets}
    ]  # fmt: skip
    return any(asks(one.value) for one in set_here) and len(loop.body) == len(set_here)


def reads(call: ast.Call, language: frozenset[str]) -> bool:
    """A load or an atomic."""
    name = name_below(call.func, language)
    return name == "load" or name.startswith("atomic_")
