"""Tests that need the device wait until they are asked for.

A test that runs on the target for the first time fails where anything in it is the origin's: an
expected message, a library, a process group, a kernel of the project. People who port a project
leave its tests for later: of 651 device lines that 24 ports changed, 18 stand in tests
(`benchmarks.golden_ports`). What tests do without the device (mocks, expected values) moves with
the code that they test.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from joymigrate.language import Text
from joymigrate.model import Finding, Scan, Tier
from joymigrate.rewrite.groups import FindingGroups
from joymigrate.rewrite.guards import ends_block
from joymigrate.rewrite.kernel_tests import skip_around, skips_with_device
from joymigrate.rewrite.questions import find as find_questions
from joymigrate.rewrite.questions import names_device
from joymigrate.rewrite.scopes import FUNCTIONS

if TYPE_CHECKING:
    from joymigrate.rewrite.module import Module
    from joymigrate.rewrite.units import Unit, Units

WAITS = "of a test that needs the device; --tests writes it"
STAYS = "`{text}` (line {line}) belongs to it and stays: look at both"
TOLD = (
    "{number} edits in {files} files of tests that need the device wait, and these tests are "
    "skipped on the target: --tests writes them"
)
TEST = re.compile(
    r"(?:^|/)(?:tests?|unit_?tests?|testing)/|(?:^|/)(?:test_[^/]*|[^/]*_test|conftest)\.py$"
)
MARKED = re.compile(r"(?:^|[._])(?:gpu|cuda|multigpu|nvidia)", re.I)  # `@pytest.mark.gpu`
NAMES = {"JM111", "JM120", "JM121", "JM122", "JM130"}  # rules of names alone
METHODS = ("JM106", "JM110", "JM130")  # they fail where the device is missing


def is_test(path: str) -> bool:
    """Whether a file is one of a project's tests, by its path."""
    return TEST.search(path) is not None


def find(groups: FindingGroups, units: Units) -> dict[int, str]:
    """Findings of tests that need the device: their numbers, each with the reason.

    Where one test of a file needs it, only those that replace names of the origin's module go on.
    """
    module = groups.module
    if not is_test(module.source.path):
        return {}
    moving = [unit for unit in units.all if unit.moving]
    kept = [unit for unit in moving if not replaces_names(groups, unit)]
    questions = list(find_questions(module)) if kept else []
    if not any(needs_device(groups, unit, questions) for unit in kept):
        return {}
    # What a fixture replaces serves the other tests of the file.
    kept = [unit for unit in moving if unit in kept or not is_test_function(unit)]
    shared = [unit for unit in kept if not is_test_function(unit)]
    kept = [unit for unit in kept if not names_alone(groups, unit, questions, shared)]
    return {number: Text(WAITS) for unit in kept for number in unit.moving}


def names_alone(
    groups: FindingGroups, unit: Unit, questions: list[ast.expr], shared: list[Unit]
) -> bool:
    """Whether a test does no more than name a device, and shares nothing with what waits.

    `check(torch.device("cuda:0"))` runs on any machine: it moves with the code that it tests.
    """
    rules = {groups.findings[number].rule for number in unit.moving}
    named = str(getattr(unit.node, "name", "")).startswith("test")
    if not named or not rules <= NAMES or needs_device(groups, unit, questions):
        return False
    asked = any(unit.start <= groups.module.span(each)[0] < unit.end for each in questions)
    text = groups.module.source.text[unit.start : unit.end]
    names = {
        str(getattr(each, "id", getattr(each, "name", "")))
        for other in shared
        for each in (other.node, *getattr(other.node, "targets", ()))
    }
    return not asked and not any(re.search(rf"\b{name}\b", text) for name in names - {""})


def is_test_function(unit: Unit) -> bool:
    """Whether a unit is a test itself, and no fixture or helper of tests."""
    return str(getattr(unit.node, "name", "test")).startswith("test")


def replaces_names(groups: FindingGroups, unit: Unit) -> bool:
    """Whether a test pretends: it replaces a name of the origin's module."""
    module = groups.module
    text = module.source.text[unit.start : unit.end]
    if module.vocabulary.module not in text:
        return False
    platform = re.escape(module.vocabulary.module)
    return (
        re.search(
            rf"[\"'][\w.]*{platform}[.\"']|setattr\(\s*{platform}\b|object\(\s*{platform}\b", text
        )
        is not None
    )


def find_played(groups: FindingGroups, units: Units) -> dict[int, str]:
    """All edits of a file whose tests play a device, where a name of it stays there.

    `patch("torch.cuda._lazy_init")` serves the `x.cuda()` of the same file.
    """
    plays = is_test(groups.module.source.path) and any(
        replaces_names(groups, unit) for unit in units.all if unit.moving
    )
    for number, finding in enumerate(groups.findings) if plays else ():
        if finding.rule in NAMES and (number in groups.stay or not finding.edits):
            why: str = Text(STAYS, text=" ".join(finding.before.split()), line=finding.line)
            return {each: why for unit in units.all for each in unit.moving}
    return {}


def needs_device(groups: FindingGroups, unit: Unit, questions: list[ast.expr]) -> bool:
    """Whether a test is skipped without the device, or fails without it.

    `questions` are those of its module.
    """
    module = groups.module
    asked = [
        question for question in questions if unit.start <= module.span(question)[0] < unit.end
    ]
    platform = f"{module.vocabulary.module}."  # a question for it is looked at by itself
    texts = (module.text(each) for each in getattr(unit.node, "decorator_list", ()))
    marks = (text.replace(platform, "") for text in texts)
    if any(MARKED.search(mark) for mark in marks) or any(map(is_skipping, asked)):
        return True
    if any(is_left_without(groups, unit, branch) for branch in module.names.nodes[ast.If]):
        return True
    if asked:
        return False
    return any(takes_device(groups, groups.findings[number]) for number in unit.moving)


def is_skipping(question: ast.AST) -> bool:
    """Whether a question skips what follows: by the framework, or as it leaves the function."""
    if skip_around(question) is not None:
        return not skips_with_device(question)
    at: ast.AST | None = question
    while isinstance(at, ast.expr):
        at = getattr(at, "parent", None)
    return isinstance(at, ast.If) and ends_block(at.body[-1])


def is_left_without(groups: FindingGroups, unit: Unit, branch: ast.If) -> bool:
    """Whether a condition that names the device leaves a test: `if DEVICE != "cuda:0": skip()`."""
    inside = unit.start <= groups.module.span(branch)[0] < unit.end
    return inside and ends_block(branch.body[-1]) and names_device(groups.module, [branch.test])


def takes_device(groups: FindingGroups, finding: Finding) -> bool:
    """Whether a place fails on a machine without the device."""
    module = groups.module
    if finding.rule in METHODS:
        return not is_compared(module, groups.offset(finding))
    if finding.rule == "JM101":
        return not finding.before.startswith(("'", '"')) and not finding.before.endswith(
            ("is_available", module.vocabulary.module)
        )
    if finding.rule not in ("JM120", "JM121", "JM122"):
        return False
    offset = groups.offset(finding)

    def holds(node: ast.AST) -> bool:
        start, end = module.span(node)
        return start <= offset < end

    named = {
        (target.id, module.names.enclosing(target, FUNCTIONS))
        for each in module.names.nodes[ast.Assign]
        for target in each.targets
        if isinstance(target, ast.Name) and holds(each)
    }
    for call in module.names.nodes[ast.Call]:
        values = (*call.args, *(keyword.value for keyword in call.keywords))
        names = ((getattr(e, "id", ""), module.names.enclosing(e, FUNCTIONS)) for e in values)
        if any(map(holds, values)) or any(each in named for each in names):
            dotted = module.names.dotted(call.func) or ""
            made = dotted.startswith("torch.") and not dotted.endswith((".device", "autocast"))
            if made or getattr(call.func, "attr", "") == "to":
                return True
    return False


def is_compared(module: Module, offset: int) -> bool:
    """Whether a place stands in a comparison."""
    spans = (module.span(compare) for compare in module.names.nodes[ast.Compare])
    return any(start <= offset < end for start, end in spans)


def include(scan: Scan) -> Scan:
    """The scan with edits of such tests among the safe ones."""
    waiting = {f.path for f in scan.findings if is_waiting(f)}
    if not waiting:
        return scan
    found = tuple(
        replace(f, tier=Tier.SAFE, reason=None)
        if is_waiting(f) or (f.path in waiting and f.rule == "JM001" and f.after)
        else f
        for f in scan.findings
    )
    return replace(scan, findings=found)


def is_waiting(finding: Finding) -> bool:
    """Whether an edit waits as it is of a test that needs the device."""
    return finding.tier is Tier.UNSAFE and str(finding.reason or "") == WAITS


def tell_waiting(scan: Scan) -> list[str]:
    """A note about edits that wait, for the end of a rewrite."""
    waiting = [finding for finding in scan.findings if is_waiting(finding)]
    if not waiting:
        return []
    files = len({finding.path for finding in waiting})
    note: str = Text(TOLD, number=len(waiting), files=files)
    return [note]
