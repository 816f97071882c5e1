"""The contract `joymigrate.names/1`: names explained, each as everything that it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from joymigrate.evidence import count_grades, grade_line
from joymigrate.language import mark, tell, with_texts
from joymigrate.lookup import Described, Statement
from joymigrate.lookup.rewrite_lookup import STYLES
from joymigrate.report.blocks import Block, BlockDocument, Chapter, Listing, Paragraph
from joymigrate.report.fields import fields
from joymigrate.report.rules import RuleExplanation, sentence

SCHEMA = "joymigrate.names/1"
KINDS = {
    "rule": "a rule",
    "api": "an API",
    "import": "a name of a package",
    "method": "a method",
    "operator": "an operator",
    "package": "a package",
    "code": "an error code",
    "variable": "an environment variable",
    "tool": "a tool",
    "value": "a device or a backend",
}
COVERS = "what this tells: {covers}"
MORE = "its examples: joymigrate explain {rule}"


def describe_rule(name: str, found: RuleExplanation) -> Described:
    """A rule beside other names, in short."""
    rule = found.rule
    told = Statement(
        (found.chip.name,),
        f"{rule.title}: {sentence(rule.message)}",
        tier=rule.tier.value,
        rule=rule.id,
        source=rule.reference,
    )
    return Described(name, "rule", (told,))


def document(found: Sequence[Described], to: str) -> dict[str, Any]:
    """The names as plain data."""
    told = [one for each in found for one in each.statements]
    made = {
        "schema": SCHEMA,
        "to": to,
        "grades": count_grades(one.grade for one in told),
        "names": [
            {
                **fields(each, "name kind covers"),
                "statements": [
                    fields(one, "chips styles becomes since tier text rule source grade")
                    for one in each.statements
                ],
            }
            for each in found
        ],
    }
    return with_texts(made)


def describe(found: Sequence[Described]) -> BlockDocument:
    """A chapter for each kind of thing that a name is: the statements, and what they don't tell."""
    chapters = []
    for at, each in enumerate(found):
        blocks: list[Block] = [Listing([line(one) for one in each.statements])]
        if each.kind == "rule":
            blocks.append(Paragraph(tell(MORE, rule=each.statements[0].rule)))
        if each.covers:
            blocks.append(Paragraph(tell(COVERS, covers=each.covers)))
        title = f"{each.name}{mark('colon')}{tell(KINDS[each.kind])}"
        chapters.append(Chapter(f"name-{at}", title, blocks, menu=each.name))
    grades = count_grades(one.grade for each in found for one in each.statements)
    return BlockDocument(
        tell("Names explained"), grade_line(grades), chapters, "joymigrate explain"
    )


def line(one: Statement) -> str:
    """One statement: chips, style, what is written, since when, how safely, why; its source."""
    styles = mark("list").join(one.styles) if len(one.styles) < len(STYLES) else ""
    head = mark("list").join(one.chips) + (f" [{styles}]" if styles else "")
    middle = [one.becomes, one.tier, tell(one.since) if one.since else None, tell(one.text)]
    body = mark("semicolon").join(part for part in middle if part)
    source = mark("colon").join(part for part in (one.grade, one.source) if part)
    rule = f" [{one.rule}]" if one.rule else ""
    return f"{head}{mark('colon')}{body}{rule}{mark('open')}{source}{mark('close')}"
