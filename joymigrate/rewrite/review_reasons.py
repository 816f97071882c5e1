"""Edits that need review, as what they belong to was not seen whole.

A package outside of the project may be handed the device; a load is given no place; what runs
behind a question for a tensor's device may be the origin's own; a test needs the device.
"""

from __future__ import annotations

import ast
import re

from joymigrate import chips
from joymigrate.language import Text
from joymigrate.model import Style
from joymigrate.rewrite import (
    device_tests,
    questions,
    third_party,
)
from joymigrate.rewrite.groups import PROFILER, FindingGroups, shorten
from joymigrate.rewrite.option_calls import literal_type
from joymigrate.rewrite.scopes import FUNCTIONS
from joymigrate.rewrite.units import Unit, Units

ANNOTATION = "an annotation, which nothing reads as the program runs"
APART = "the profiler that takes it is made in another file"
UNKNOWN = "`{name}` runs behind this question, and nothing tells whether it does on the target"


def find(groups: FindingGroups) -> dict[int, str]:
    """Findings of a module that need review: their numbers, each with the reason."""
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
    for unit in units.all:
        if unit.moving and all(annotates(groups, unit, number) for number in unit.moving):
            found = {**dict.fromkeys(unit.moving, Text(ANNOTATION)), **found}
    found = {**device_tests.find_played(groups, units), **found}
    for numbers, load in questions.find_loads(groups):
        line = module.source.position(module.span(load)[0])[0]
        for number in numbers:
            found.setdefault(
                number, Text(device_tests.STAYS, text=shorten(module.text(load)), line=line)
            )
    for numbers, name in questions.find_open(groups):
        for number in numbers:
            found.setdefault(number, Text(UNKNOWN, name=name))
    return found


def find_apart(groups: FindingGroups) -> dict[int, str]:
    """What a profiler is given, in a file that makes none."""
    text = groups.module.source.text
    numbers = [n for n, f in enumerate(groups.findings) if f.rule == PROFILER and f.edits]
    if not numbers or ("profile(" in text and re.search(r"\bprofile\(", text)):
        return {}
    return dict.fromkeys(numbers, Text(APART))


def annotates(groups: FindingGroups, unit: Unit, number: int) -> bool:
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


def is_handed_on(groups: FindingGroups, name: str) -> bool:
    """Whether a file hands a function to a call by its name."""
    calls = groups.module.names.nodes[ast.Call]
    given = (value for call in calls for value in (*call.args, *(k.value for k in call.keywords)))
    return any(isinstance(each, ast.Name) and each.id == name for each in given)
