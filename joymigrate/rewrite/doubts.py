"""Edits that need a look, as what they belong to was not seen whole.

Two things make an edit doubtful. A part that stays: a place that names the origin's device, a value
that is not moved, or a library with the origin's kernels, in the same function as the edit and
bound to it (by a condition or a variable; in a test by standing there). A question for the device
about a tensor that leads nowhere: it moves by itself only where code for the device is seen to move
behind it, as what else runs there may be the origin's alone. Questions for the platform have one
answer in all of a project and move together.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from joymigrate import chips
from joymigrate.language import Text
from joymigrate.model import Style, Tier
from joymigrate.rewrite import (
    device_tests,
    for_people,
    foreign,
    halves,
    kernel_names,
    questions,
    third_party,
)
from joymigrate.rewrite.groups import DOUBTED, PROFILER, Groups, is_label
from joymigrate.rewrite.option_calls import literal_type
from joymigrate.rewrite.scopes import FUNCTIONS
from joymigrate.rewrite.units import Unit, Units

if TYPE_CHECKING:
    from joymigrate.rewrite.module import Module

# Rules of places that are half of something where they stay: devices, their names, their backend,
# what the card can do, what needs its kernels. Not those of switches and variables.
PARTS = frozenset(
    f"JM{number}" for number in (
        101, 102, 105, 107, 109, 110, 111, 120, 121, 122, 123, 124, 130, 131, 140, 160, 161, 181,
        192, 201, 203, 205,
    )
)  # fmt: skip
STAYS = "`{text}` (line {line}) belongs to it and stays: look at both"
ANNOTATION = "an annotation, which nothing reads as the program runs"
APART = "the profiler that takes it is made in another file"
LEADS_NOWHERE = "no code for the device is seen to move behind this question"


def find(groups: Groups) -> dict[int, str]:
    """Findings of a module that need a look: their numbers, each with the reason."""
    module = groups.module
    found = third_party.find(groups)
    if module.context.style is not Style.SHIM:
        found = {**find_apart(groups), **found}
    if not any(finding.edits for finding in groups.findings):
        return found
    if module.context.origin.name != chips.origin().name:
        return found  # the way back: what was written is taken back
    bound = third_party.find_bound(module)
    if bound is not None:
        return {**found, **dict.fromkeys(range(len(groups.findings)), str(bound))}
    units = Units(module)
    for number, finding in enumerate(groups.findings):
        unit = units.at(groups.offset(finding)) if finding.edits else None
        if unit is not None and number not in groups.stay and finding.rule != "JM001":
            unit.moving.append(number)
    if module.context.style is not Style.SHIM:
        found = {**found, **device_tests.find(groups, units)}
    elif device_tests.is_test(module.source.path):  # so does the import of the shim there
        waits: str = Text(device_tests.WAITS)
        found = {**found, **{number: waits for unit in units.all for number in unit.moving}}
    collect_parts(groups, units)
    for unit in units.all:
        if unit.moving and all(annotates(groups, unit, number) for number in unit.moving):
            found = {**dict.fromkeys(unit.moving, Text(ANNOTATION)), **found}
    test = device_tests.is_test(module.source.path)
    for unit in units.all:
        if not unit.parts:
            continue
        if device_tests.replaces_names(groups, unit):
            # What it replaces moves with the code that it tests; half of it would play nothing.
            part = next((p for p in unit.parts if test and is_played(unit, p)), None)
            found |= hold_all(groups, units, part) if part is not None else {}
            continue
        for number in unit.moving:
            part = next(
                (part for part in unit.parts if test or is_bound_to(groups, unit, part, number)),
                None,
            )
            if part is not None and number not in found:
                _, offset, text = part
                line = module.source.position(offset)[0]
                found[number] = Text(STAYS, text=shorten(text), line=line)
    for question, load in questions.find_loads(groups):
        line = module.source.position(module.span(load)[0])[0]
        for number in question:
            found.setdefault(number, Text(STAYS, text=shorten(module.text(load)), line=line))
    for number in questions.find_idle(groups):
        found.setdefault(number, Text(LEADS_NOWHERE))
    found = doubt_around(groups, {**halves.find_outside(groups), **found})
    return doubt_around(groups, {**halves.find(groups, found), **found})


def doubt_around(groups: Groups, found: dict[int, str]) -> dict[int, str]:
    """The same with guards of what needs a look, and with what runs behind a condition that does.

    `if torch.cuda.is_available(): outside.load(device="cuda")`: with the question alone moved the
    target would come to code that is not.
    """
    seen: set[int] = set()
    tests: str = Text(device_tests.WAITS)
    while fresh := {n for n, why in found.items() if n not in seen and why != tests}:
        seen |= fresh
        for number in fresh:
            at = groups.expression_at(groups.offset(groups.findings[number]))
            before, line = groups.findings[number].before, groups.findings[number].line
            for other in groups._behind(at) if at is not None else ():
                found.setdefault(other, Text(DOUBTED, text=shorten(before), line=line))
        for place, number in groups.moved:
            if number in fresh:
                for other in groups._with_guard(place, hold=False):
                    found.setdefault(other, groups._why(place, DOUBTED))
    return found


def find_apart(groups: Groups) -> dict[int, str]:
    """What a profiler is given, in a file that makes none."""
    text = groups.module.source.text
    numbers = [n for n, f in enumerate(groups.findings) if f.rule == PROFILER and f.edits]
    if not numbers or ("profile(" in text and re.search(r"\bprofile\(", text)):
        return {}
    return dict.fromkeys(numbers, Text(APART))


def is_played(unit: Unit, part: tuple[ast.AST | None, int, str]) -> bool:
    """Whether a part that stays in a fixture is the name that it gives to tests."""
    parent = getattr(part[0], "parent", None)
    played = isinstance(parent, (ast.Yield, ast.Return)) and isinstance(part[0], ast.Constant)
    return played and not device_tests.is_test_function(unit)


def hold_all(groups: Groups, units: Units, part: tuple[ast.AST | None, int, str]) -> dict[int, str]:
    """All findings of a file, as a part of a fixture stays."""
    line = groups.module.source.position(part[1])[0]
    reason: str = Text(STAYS, text=shorten(part[2]), line=line)
    return {number: reason for unit in units.all for number in unit.moving}


def shorten(text: str) -> str:
    """A text in one line."""
    shown = " ".join(text.split())
    return shown if len(shown) < 60 else shown[:59] + "…"


def annotates(groups: Groups, unit: Unit, number: int) -> bool:
    """Whether an edit stands in `Literal[…]` of a function's annotations that nothing reads."""
    if not isinstance(unit.node, FUNCTIONS) or unit.node.decorator_list:
        return False
    if is_handed_on(groups, unit.node.name):
        return False  # `typer.run(main)` makes options of them
    given = unit.node.args
    args = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    notes = (unit.node.returns, *(each.annotation for each in args))
    inside = (each for note in notes if note is not None for each in ast.walk(note))
    spans = (
        groups.module.span(each)
        for each in inside
        if isinstance(each, ast.Subscript) and literal_type(each)
    )
    offset = groups.offset(groups.findings[number])
    return any(start <= offset < end for start, end in spans)


def is_handed_on(groups: Groups, name: str) -> bool:
    """Whether a file hands a function to a call by its name."""
    calls = groups.module.names.nodes[ast.Call]
    given = (value for call in calls for value in (*call.args, *(k.value for k in call.keywords)))
    return any(isinstance(each, ast.Name) and each.id == name for each in given)


# -- parts that stay ---------------------------------------------------------------------------


def collect_parts(groups: Groups, units: Units) -> None:
    """Give each unit with edits the places in it that stay."""
    module = groups.module

    def add(node: ast.AST | None, offset: int, text: str) -> None:
        unit = units.at(offset)
        if unit is not None and unit.moving:
            unit.parts.append((node, offset, text))

    def is_authors(node: ast.AST, offset: int) -> bool:
        """Whether a place stays by the author's will: a name, both devices, another back end."""
        at = groups.expression_at(offset)
        both = at is not None and groups._mixed_before(at)
        named = is_label(node) or is_attribute_name(node)
        return named or both or foreign.elsewhere(module, node)

    for mention in groups.mentions:
        if mention.start not in groups.shown and not is_authors(mention.node, mention.start):
            add(mention.node, mention.start, module.source.text[mention.start : mention.end])
    named = {module.span(node)[0] for node, _ in module.spoken if is_label(node)}
    for number, finding in enumerate(groups.findings):
        stays = number in groups.stay or not finding.edits or finding.tier is Tier.UNSAFE
        offset = groups.offset(finding)
        stays = stays and finding.rule in PARTS and number not in groups.elsewhere
        if stays and offset not in named and offset not in groups.shown:
            add(None, offset, finding.before)
    moved = sorted((e.start, e.end) for f in groups.findings for e in f.edits)
    by_shim = module.context.style is Style.SHIM  # which reads the words where they arrive
    for node, value in () if by_shim else module.spoken:
        start, end = module.span(node)
        if names_device(module, value) and not (
            for_people.is_for_eyes(node) or is_authors(node, start)
        ):
            first, last = module.source.to_bytes(start), module.source.to_bytes(end)
            if not any(left < last and right > first for left, right in moved):
                add(node, start, value)
    for chain, dotted in module.names.imported_chains():
        if kernel_names.is_bound(module, dotted) and not is_replaceable(module, dotted):
            add(chain, module.span(chain)[0], dotted)


def is_attribute_name(node: ast.AST) -> bool:
    """Whether a text is an attribute's name: `getattr(args, "cuda")`."""
    call = getattr(node, "parent", None)
    asked = getattr(getattr(call, "func", None), "id", "") in ("getattr", "hasattr", "setattr")
    return asked and node in call.args[1:2]  # type: ignore[union-attr]


def is_replaceable(module: Module, dotted: str) -> bool:
    """Whether a library with kernels is of the rules whose uses people port: attention, apex."""
    from joymigrate.rewrite.codemods.patterns import lookup, patterns

    table = patterns(module.context)
    rule = table.names.get(dotted) or lookup(dotted, {}, table.imports)
    return rule in ("JM200", "JM141")


def names_device(module: Module, text: str) -> bool:
    """Whether a text holds the device as a value or in a name, and is no sentence about it."""
    device = re.escape(module.vocabulary.device)
    if re.match(r"--(?!\w*device)[\w-]+=", text):
        return False  # an option that is not known to be a device
    if re.search(rf"torch\.{device}\b|_{device}_", text):
        return True
    if len(text.split()) > 2 and not re.search(rf"device\W{{1,4}}{device}\b", text):
        return False
    return re.search(rf"(?<![\w.-]){device}(?![\w-])", text) is not None


def is_bound_to(
    groups: Groups, unit: Unit, part: tuple[ast.AST | None, int, str], number: int
) -> bool:
    """Whether a part that stays shares a condition or a name with an edit of its function."""
    module, finding = groups.module, groups.findings[number]
    one = statement_at(module, unit, part[1])
    if isinstance(one, ast.AnnAssign):
        start, end = module.span(one.annotation)
        if start <= part[1] < end:
            return False  # a type, for checkers alone
    other = statement_at(module, unit, groups.offset(finding))
    if one is None or other is None:
        return True
    compared = device_tests.is_compared
    if compared(module, part[1]) and compared(module, groups.offset(finding)):
        return True  # two comparisons of one function speak of one device
    if one is other:  # of texts in one statement the group has decided
        return not (isinstance(part[0], ast.Constant) or part[2].startswith(('"', "'")))
    if one in above(other) or other in above(one):
        return True
    return bool(names_in(module, one) & names_in(module, other))


def statement_at(module: Module, unit: Unit, offset: int) -> ast.stmt | None:
    """The innermost statement that holds an offset."""
    found: ast.stmt | None = None
    todo: list[ast.AST] = [unit.node]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.stmt):
            start, end = module.span(node)
            start = min([start, *(module.span(d)[0] for d in getattr(node, "decorator_list", ()))])
            if not start <= offset < end:
                continue
            found = node
        todo += [
            each for each in ast.iter_child_nodes(node)
            if isinstance(each, (ast.stmt, ast.ExceptHandler, ast.match_case))
        ]  # fmt: skip
    return found


def above(node: ast.AST) -> Iterator[ast.AST]:
    """The statements around a statement inside of its function."""
    at = getattr(node, "parent", None)
    while at is not None and not isinstance(at, FUNCTIONS):
        yield at
        at = getattr(at, "parent", None)


def names_in(module: Module, statement: ast.stmt) -> set[str]:
    """Variables and attributes that a statement, or the head of a compound one, speaks of.

    `model.cuda()` speaks of `model`, `args.device` of that, `torch.zeros(n)` of `n`.
    """
    found = set()
    todo: list[ast.AST] = [
        each for each in ast.iter_child_nodes(statement)
        if not isinstance(each, (ast.stmt, ast.ExceptHandler, ast.match_case))
    ]  # fmt: skip
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Call):
            todo += [*node.args, *(keyword.value for keyword in node.keywords)]
            if isinstance(node.func, ast.Attribute):
                todo.append(node.func.value)
            elif not isinstance(node.func, ast.Name):
                todo.append(node.func)
        elif isinstance(node, (ast.Name, ast.Attribute)):
            if module.names.dotted(node) is None:
                text = ast.unparse(node)
                if text not in ("self", "cls"):
                    found.add(text)
        else:
            todo += list(ast.iter_child_nodes(node))
    return found
