"""Every rule's cases, run: what is written, what is only reported, what is left alone."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from joymigrate import chips, rewrite
from joymigrate.model import Case, Finding, Rule, Scan, Tier
from joymigrate.rewrite import cases, device_tests, rules
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.patch import patches
from joymigrate.rewrite.project import scan


def all_cases() -> Iterator[object]:
    for rule in rules.common_rules():
        for number, case in enumerate(rule.cases, 1):
            kind = (PurePosixPath(case.file).suffix or case.file).lstrip(".")
            yield pytest.param(rule, case, id=f"{rule.id}-{number}-{kind}-{case.style.value}")


def scanned(case: Case, root: Path) -> Scan:
    """One scan of a project that holds the case's files."""
    for path, text in ((case.file, case.before), *case.files):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text.encode())
    chip, origin = chips.target(case.chip), chips.origin()
    return scan([root], chip=chip, origin=origin, style=case.style, jobs=1)


def of_rule(found: Scan, rule: Rule, case: Case) -> list[Finding]:
    return [f for f in found.findings if f.rule == rule.id and f.path == case.file]


def rewritten(found: Scan, case: Case) -> str:
    """The case's file after its patch; as it was, without one."""
    for patch in patches(device_tests.include(found), unsafe=case.unsafe):
        if patch.path == found.root / case.file and patch.after is not None:
            return patch.after.decode()
    return case.before


@pytest.mark.parametrize(("rule", "case"), list(all_cases()))
def test_a_case_comes_out_as_the_rule_says(rule: Rule, case: Case, tmp_path: Path) -> None:
    context = Context.between(chips.target(case.chip), chips.origin(), case.style)
    case = cases.fill_case(case, context)
    found = scanned(case, tmp_path)
    mine = of_rule(found, rule, case)
    after = rewritten(found, case)
    if case.keep:
        assert mine == []
        return
    assert mine, "the rule finds nothing in its own example"
    if case.after is None:
        assert any(each.tier is not Tier.SAFE for each in mine)
        assert all(each.reason or each.message for each in mine), "a report says why"
    else:
        assert after == case.after


@pytest.mark.parametrize("rule", rules.common_rules(), ids=lambda rule: rule.id)
def test_a_rule_shows_itself(rule: Rule) -> None:
    if rule.id == "JM000":
        pytest.skip("about files that can't be shown inside YAML; see the tests of the readers")
    assert any(not case.keep for case in rule.cases), "no example"
    if rule.tier is not Tier.REPORT:
        assert any(case.keep for case in rule.cases), "nothing that it leaves alone"


def test_no_module_hides_a_function_that_the_package_hands_out() -> None:
    """Importing a module sets its name on the package, in the place of a function loaded later."""
    modules = {module.name for module in pkgutil.iter_modules(rewrite.__path__)}
    assert not modules & set(rewrite.__all__)
