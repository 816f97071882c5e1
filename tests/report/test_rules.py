"""The rule reference and `explain`."""

from __future__ import annotations

import re

import pytest

from joymigrate import chips
from joymigrate.errors import JoyError
from joymigrate.language import Language, speaking
from joymigrate.model import Case
from joymigrate.report import rules
from joymigrate.report.blocks import Preformatted
from joymigrate.report.renderers import md, render
from joymigrate.rewrite.rules import load

KNOWN = load(chips.target(None), chips.origin())


def explain(rule: str, chip: str | None = None) -> rules.RuleExplanation:
    return rules.explain(rule, chips.target(chip), chips.origin())


def test_the_reference_has_every_rule() -> None:
    assert re.findall(r"^## (JM\d+)", rules.reference(), re.M) == list(KNOWN)


@pytest.mark.parametrize("rule", KNOWN)
def test_every_rule_can_be_explained(rule: str) -> None:
    found = explain(rule)
    shown = [render(rules.describe([found]), form) for form in ("text", "md")]
    with speaking(Language("zh")):
        shown.append(render(rules.describe([found]), "text"))
    for text in shown:
        assert rule in text
        assert "{before}" not in text
    assert rules.document(found)["schema"] == "joymigrate.rule/1"


def test_a_rule_is_found_by_name_and_in_any_case() -> None:
    assert explain("jm130").rule.id == "JM130"
    assert explain(KNOWN["JM130"].name).rule.id == "JM130"


@pytest.mark.parametrize(("word", "near"), [("JM01", "JM"), ("colective-backend", "collective-b")])
def test_an_unknown_rule_names_the_nearest(word: str, near: str) -> None:
    with pytest.raises(JoyError, match=f"unknown rule '{word}'. Did you mean '{near}"):
        explain(word)


def test_each_chip_shows_its_own_writing() -> None:
    found = explain("JM130")
    lines = {one.chip: one.after for one in found.writings if one.after}
    assert len(lines) > 1
    for chip, after in lines.items():
        assert chips.get(chip).backend in (after or "")


def test_the_origin_is_no_target() -> None:
    assert chips.origin().name not in [one.chip for one in explain("JM130").writings]


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ("a\nx.cuda()\n", "a\nx.npu()\n", ("x.cuda()", "x.npu()")),
        ("import a\nb.cuda()\n", "import a\nimport n\nb.npu()\n", ("b.cuda()", "b.npu()")),
        ("a\n", "n\na\n", None),
    ],
)
def test_the_changed_line_is_the_replaced_one(
    before: str, after: str, line: tuple[str, str] | None
) -> None:
    assert rules.changed_line(Case(before, after)) == line


def test_what_is_left_alone_has_no_changed_line() -> None:
    assert rules.changed_line(Case("x", keep=True)) is None


def test_code_with_fences_gets_a_longer_one() -> None:
    assert next(iter(md.draw(Preformatted("a\n```\n", "python")))) == "````python"


def test_files_have_the_language_of_their_kind() -> None:
    names = ["a.py", "run.sh", "Dockerfile", "pod.yaml"]
    assert [rules.language(name) for name in names] == ["python", "bash", "dockerfile", "yaml"]
