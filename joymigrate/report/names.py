"""The contract `joymigrate.names/1`: names explained, each as everything that it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from joymigrate.evidence import count_grades, grade_line
from joymigrate.language import Language, bracket
from joymigrate.lookup import Described, Statement
from joymigrate.lookup.rewrite_lookup import STYLES
from joymigrate.report.fields import fields
from joymigrate.report.renderers.md import escape
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
    return {
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


def text(found: Sequence[Described], lang: str = "en") -> str:
    """The names for a terminal or a pipe: a line for each statement, never wrapped."""
    return "\n".join(text_lines(found, Language(lang))) + "\n"


def text_lines(found: Sequence[Described], say: Language) -> Iterator[str]:
    """A heading for each kind of thing that a name is, the statements, what they don't tell."""
    for each in found:
        yield f"{each.name}{say.traits.marks['colon']}{say(KINDS[each.kind])}"
        for one in each.statements:
            yield f"  {line(one, say)}"
        if each.kind == "rule":
            yield f"  {say(MORE, rule=each.statements[0].rule)}"
        if each.covers:
            yield f"  {say(COVERS, covers=each.covers)}"
        yield ""
    grades = count_grades(one.grade for each in found for one in each.statements)
    yield grade_line(grades, say)


def line(one: Statement, say: Language) -> str:
    """One statement: chips, style, what is written, since when, how safely, why; its source."""
    mark = say.traits.marks
    styles = mark["list"].join(one.styles) if len(one.styles) < len(STYLES) else ""
    head = mark["list"].join(one.chips) + (f" [{styles}]" if styles else "")
    middle = [one.becomes, one.tier, say(one.since) if one.since else None, say(one.text)]
    body = mark["semicolon"].join(part for part in middle if part)
    source = mark["colon"].join(part for part in (one.grade, one.source) if part)
    rule = f" [{one.rule}]" if one.rule else ""
    return f"{head}{mark['colon']}{body}{rule}{bracket(source, say)}"


def markdown(found: Sequence[Described], lang: str = "en") -> str:
    """The names as Markdown: a section for each."""
    say = Language(lang)
    lines = []
    for each in found:
        lines += [f"## {escape(each.name)}: {say(KINDS[each.kind])}", ""]
        lines += [f"- {escape(line(one, say))}" for one in each.statements]
        lines += ["", escape(say(COVERS, covers=each.covers)), ""] if each.covers else [""]
    grades = count_grades(one.grade for each in found for one in each.statements)
    return "\n".join([*lines, grade_line(grades, say)]) + "\n"
