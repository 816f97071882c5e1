"""Names of devices in a file that have an edit: where each goes, or what is compared with it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joymigrate.model import Finding, Tier
from joymigrate.rewrite.device_places import compared_with
from joymigrate.rewrite.device_tests import is_waiting
from joymigrate.rewrite.expressions import called_name, calls_around
from joymigrate.rewrite.groups import PLACES
from joymigrate.rewrite.option_calls import OPTION_CALLS
from joymigrate.rewrite.third_party import SETTINGS, spread

if TYPE_CHECKING:
    from joymigrate.rewrite.module import Module


@dataclass(frozen=True, slots=True)
class Name:
    """A device's name in a file: one that is handed on, or one that a value is compared with.

    `keys` are those that its value goes on to, or those that what is compared comes from; `near`
    are all of them inside of the file.
    """

    line: int
    column: int
    kind: str
    compared: bool
    keys: frozenset[str]
    near: frozenset[str]
    text: str
    waits: bool
    option: str = ""  # the option that it is a value of, or whose value is compared
    lines: tuple[int, int] = (0, 0)  # of the statement whose condition a question is
    refuses: bool = False  # whether other names than those that are asked for are refused


def collect(module: Module, findings: Iterable[Finding]) -> tuple[Name, ...]:
    """The names of a file that have an edit, and questions that stay before what places a value."""
    if not module.valued:
        return ()
    flow, path = module.flow, module.source.path
    kept = module.kept
    placed = {at: e for e in findings if (at := (e.line, e.column)) in kept or e.edits}
    found = []
    options = find_options(module)

    compares = {module.source.position(module.span(node)[0]): node for node, _ in module.spoken}

    def add(
        finding: Finding, kind: str, keys: set[str], compared: bool, asked: ast.expr | None
    ) -> None:
        near = flow.back(keys) if compared else spread(flow, keys)
        far = flow.sources(keys) if compared else flow.reach(keys)[1]
        waits = not finding.edits or (finding.tier is Tier.UNSAFE and not is_waiting(finding))
        name = " ".join(finding.before.split())
        at = (finding.line, finding.column)
        ends = (qualify(far, path), frozenset(near))
        option = options.get(at, "")
        lines, places, refuses = decide(module, asked)
        waits = waits and (places or refuses or not compared)
        found.append(Name(*at, kind, compared, *ends, name, waits, option, lines, refuses))

    for place, (kind, keys, compared) in module.valued.items():
        finding = placed.get(place)
        if finding is None or not keys:
            continue
        add(finding, kind, set(keys), compared, compares.get(place) if compared else None)
        for compare, asked in () if compared else find_members(module, found[-1].near):
            add(finding, kind, asked, True, compare)
    return tuple(found)


def find_options(module: Module) -> dict[tuple[int, int], str]:
    """Texts that are values of an option or that one is compared with, by place: its name.

    `add_argument("--device", default="cuda")`, `args.device == "cuda"`
    """
    found: dict[tuple[int, int], str] = {}
    for node, _ in module.spoken:
        compared = compared_with(node)
        name: str | None = None
        if isinstance(compared, ast.Attribute):
            name = compared.attr if SETTINGS.search(ast.unparse(compared.value)) else None
        else:
            calls = (each for each in calls_around(node) if called_name(each) in OPTION_CALLS)
            name = next((flag for call in calls for flag in find_flags(call)), None)
        if name:
            found[module.source.position(module.span(node)[0])] = name
    return found


def find_flags(call: ast.Call) -> Iterator[str]:
    """Long names of the option that a call defines, as attributes are called after them."""
    for each in call.args:
        text = each.value if isinstance(each, ast.Constant) else None
        if isinstance(text, str) and text.startswith("--"):
            yield text.lstrip("-").replace("-", "_")


def decide(module: Module, asked: ast.expr | None) -> tuple[tuple[int, int], bool, bool]:
    """What a question decides: lines of its statement, whether a value is placed, or refused."""
    at: ast.AST | None = asked
    while isinstance(at, ast.expr):
        at = getattr(at, "parent", None)
    if isinstance(at, ast.Assert):
        return (0, 0), False, True
    if not isinstance(at, ast.If):
        return (0, 0), False, False
    ends = [part[-1] for part in (at.body, at.orelse) if part]
    refuses = any(isinstance(each, ast.Raise) for each in ends)
    lines = (at.lineno, at.end_lineno or at.lineno)
    return lines, any(PLACES.search(module.text(each)) for each in at.body), refuses


def find_members(module: Module, near: Set[str]) -> Iterator[tuple[ast.expr, set[str]]]:
    """Comparisons that look for something in a list that holds a name, with the keys of that.

    `if device not in KNOWN`
    """
    flow = module.flow
    for compare in module.names.nodes[ast.Compare]:
        many = compare.comparators[0]
        if not isinstance(compare.ops[0], (ast.In, ast.NotIn)) or isinstance(many, ast.Constant):
            continue
        parts = [many.left, many.right] if isinstance(many, ast.BinOp) else [many]
        leaves = (leaf for part in parts for leaf in flow.leaves(part))
        if any(leaf in near for leaf in leaves if isinstance(leaf, str)):
            asked = {leaf for leaf in flow.leaves(compare.left) if isinstance(leaf, str)}
            if asked:
                yield compare, asked


def qualify(keys: Iterable[str], path: str) -> frozenset[str]:
    """Keys with their file; attributes are shared by all files."""
    return frozenset(
        key if "::" in key or key.startswith(".") else f"{path}::{key}" for key in keys
    )
