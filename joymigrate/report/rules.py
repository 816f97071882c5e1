"""Rules explained: what one looks for, what it writes on which chip, with its examples.

`python -m joymigrate.report.rules` prints the reference of all rules.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any

from joymigrate import chips
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.evidence import count_grades, grade_line
from joymigrate.language import HAN, Language, mark, tell
from joymigrate.model import Case, Rule, Style, Tier
from joymigrate.report.blocks import (
    Block,
    BlockDocument,
    Chapter,
    Code,
    Paragraph,
    Preformatted,
    TableBlock,
)
from joymigrate.report.fields import fields
from joymigrate.report.labels import Labels
from joymigrate.report.renderers import md
from joymigrate.rewrite import cases, rules
from joymigrate.rewrite.context import Context

SCHEMA = "joymigrate.rule/1"
LIST_SCHEMA = "joymigrate.rules/1"
LISTED = "rule=id name title tier area"  # of a rule in a list
LANGUAGES = {"py": "python", "sh": "bash", "yml": "yaml", "cu": "cpp", "ipynb": "python"}


@dataclass(frozen=True, slots=True)
class Writing:
    """What a rule writes on one chip: its tier there and the first line that changes."""

    chip: str
    tier: Tier
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class RuleExplanation:
    """One rule for one chip, with its examples filled in, and what it writes on all chips."""

    rule: Rule
    chip: chips.Chip
    examples: tuple[Case, ...]
    writings: tuple[Writing, ...]


def explain(
    rule_id: str, chip: chips.Chip, origin: chips.Chip, added: Iterable[Rule] = ()
) -> RuleExplanation:
    """The rule of this id (any case) or name; an unknown one raises `JoyError`.

    `added` are rules of codemods that are not ours; what they write is the same on every chip.
    """
    others = {one.id: one for one in added}
    known = {**rules.load(chip, origin), **others}
    by_name = {rule.name: rule.id for rule in known.values()}
    key = by_name.get(rule_id.lower(), rule_id.upper())
    if key not in known:
        raise JoyError(
            f"unknown rule '{rule_id}'.{did_you_mean(key, known) or nearest(rule_id, by_name)}",
            help="joymigrate explain --list",
        )
    if key in others:
        return RuleExplanation(known[key], chip, known[key].cases, ())
    targets = [one for one in chips.all_chips().values() if not one.origin]
    writings = tuple(writing(key, one, origin) for one in targets)
    return RuleExplanation(known[key], chip, examples(known[key], chip, origin), writings)


def translate(found: RuleExplanation, say: Language) -> RuleExplanation:
    """The explanation with the rule's texts in one language."""
    return replace(found, rule=rules.translate({found.rule.id: found.rule}, say)[found.rule.id])


def nearest(word: str, by_name: Mapping[str, str]) -> str:
    """The nearest rule by its name."""
    return did_you_mean(word.lower(), by_name)


def examples(rule: Rule, chip: chips.Chip, origin: chips.Chip) -> tuple[Case, ...]:
    """The rule's cases as they read for one chip; those about another chip are left out."""
    found = []
    for case in rule.cases:
        if case.chip is None or case.chip in (chip.name, *chip.aliases):
            context = Context.between(chip, origin, case.style)
            case = cases.fill_case(case, context)
            # A name without a counterpart on this chip stays what it is: the site is reported.
            lacks = case.after == case.before or cases.is_unfilled(case, context)
            found.append(replace(case, after=None) if lacks else case)
    return tuple(found)


def writing(rule_id: str, chip: chips.Chip, origin: chips.Chip) -> Writing:
    """What a rule writes on one chip, by its first example that changes a line."""
    rule = rules.load(chip, origin)[rule_id]
    for case in examples(rule, chip, origin):
        changed = changed_line(case)
        if case.style is Style.DIRECT and changed is not None:
            return Writing(chip.name, rule.tier, *changed)
    return Writing(chip.name, rule.tier, None, None)


def changed_line(case: Case) -> tuple[str, str] | None:
    """The first line that a case replaces, before and after."""
    if case.keep or case.after is None:
        return None
    before, after = case.before.splitlines(), case.after.splitlines()
    for kind, i1, _, j1, j2 in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "replace":
            alike = SequenceMatcher(None, b=before[i1])
            nearest = max(after[j1:j2], key=lambda line: similarity(alike, line))
            return before[i1].strip(), nearest.strip()
    return None


def similarity(matcher: SequenceMatcher[str], line: str) -> float:
    """How alike `line` is to the line that the matcher holds, from 0 to 1."""
    matcher.set_seq1(line)
    return matcher.ratio()


def describe(found: Sequence[RuleExplanation]) -> BlockDocument:
    """A chapter for each rule."""
    return BlockDocument(
        title=tell("Rules for {chip}", chip=found[0].chip.title),
        subtitle=grade_line(count_grades("documented" for _ in found)),
        chapters=[Chapter(one.rule.id.lower(), one.rule.id, blocks(one)) for one in found],
        footer="joymigrate explain",
    )


def blocks(found: RuleExplanation) -> list[Block]:
    """Title, tier, message, why, what is written where, examples, reference, how to silence."""
    rule, say, colon = found.rule, Labels(), mark("colon")
    made: list[Block] = [
        Paragraph(f"{rule.title} (`{rule.name}`)"),
        Paragraph(
            mark("semicolon").join(
                (
                    f"{say('tier')}{colon}{rule.tier.value}{mark('open')}"
                    f"{say('note_' + rule.tier.value)}{mark('close')}",
                    f"{say('area')}{colon}{say.area(rule.area)}",
                    f"{say('weight')} {say.duration(rule.weight)}",
                )
            )
        ),
        Paragraph(capital(sentence(rule.message))),
    ]
    if rule.why:
        made.append(Paragraph(f"{say('why')}: {sentence(rule.why)}"))
    if any(one.after for one in found.writings):
        rows = [
            (one.chip, one.tier.value, Code(f"{one.before}  →  {one.after}") if one.after else "-")
            for one in found.writings
        ]
        made.append(TableBlock((say("chip"), say("tier"), say("writing")), rows))
    if found.examples:
        made.append(Paragraph(f"{say('examples')} ({found.chip.name}):"))
    for case in found.examples:
        for title, part in parts(case, say):
            made += [Paragraph(f"{title}:"), Preformatted(part, language(case.file))]
    if rule.reference:
        made.append(Paragraph(f"{say('reference')}: {rule.reference}"))
    silence = f"# joymigrate: ignore[{rule.id}] {say('reason').lower()}"
    return [*made, Paragraph(f"{say('silence')}: `{silence}`")]


def parts(case: Case, say: Labels) -> list[tuple[str, str]]:
    """A case as titled pieces of text: before and after, reported, or left alone."""
    if case.keep:
        return [(f"{say('left_alone')} ({case.file})", case.before)]
    if case.after is None:
        return [(f"{say('reported')} ({case.file})", case.before)]
    flags = case.style.value + (", --unsafe" if case.unsafe else "")
    return [
        (f"{say('before')} ({case.file})", case.before),
        (f"{say('after')} ({flags})", case.after),
    ]


def sentence(words: str) -> str:
    """Text of a rule as one paragraph; `{before}` stands for what is found."""
    return " ".join(words.split()).replace("{before}", "…")


def document(found: RuleExplanation) -> dict[str, Any]:
    """The explanation as plain data, the contract `joymigrate.rule/1`."""
    rule = found.rule
    return {
        "schema": SCHEMA,
        "to": found.chip.name,
        "grade": "documented",
        **fields(rule, f"{LISTED} message why reference weight"),
        "examples": [
            fields(case, "file style before after keep unsafe") for case in found.examples
        ],
        "writes": [fields(one, "chip tier before after") for one in found.writings],
    }


def list_of(found: Sequence[RuleExplanation]) -> dict[str, Any]:
    """Several explanations as plain data, under the contract of the list."""
    to = found[0].chip.name
    return {"schema": LIST_SCHEMA, "to": to, "rules": [document(one) for one in found]}


def list_document(known: Mapping[str, Rule], chip: chips.Chip) -> dict[str, Any]:
    """All rules as plain data, the contract `joymigrate.rules/1`."""
    listed = [fields(rule, LISTED) for rule in known.values()]
    return {"schema": LIST_SCHEMA, "to": chip.name, "rules": listed}


def describe_list(known: Mapping[str, Rule], chip: chips.Chip) -> BlockDocument:
    """All rules in a table."""
    say = Labels()
    rows = [(r.id, Code(r.name), r.tier.value, r.area, r.title) for r in known.values()]
    head = (say("rule"), "", say("tier"), say("area"), say("what"))
    return BlockDocument(
        title=tell("Rules for {chip}", chip=chip.title),
        subtitle=grade_line(count_grades("documented" for _ in known)),
        chapters=[Chapter("list", "List", [TableBlock(head, rows, first=len(rows))], len(rows))],
        footer="joymigrate explain --list",
    )


def capital(words: str) -> str:
    """A sentence with a capital and a full stop."""
    if HAN.search(words):
        return words + ("" if words.endswith(("。", "！", "？", "：")) else "。")
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?", ":")) else ".")


def language(file: str) -> str:
    """The name that Markdown gives to a kind of file."""
    suffix = file.rpartition(".")[2] if "." in file else file.lower()
    return LANGUAGES.get(suffix, suffix)


def reference() -> str:
    """The page of every rule for the default chip."""
    chip, origin = chips.target(None), chips.origin()
    known = rules.load(chip, origin)
    listed = md.render(describe_list(known, chip))
    listed = re.sub(r"(?m)^\| (JM\d+) ", lambda m: f"| [{m[1]}](#{m[1].lower()}) ", listed)
    each = md.render(describe([explain(key, chip, origin) for key in known]))
    head = (
        f"What `joymigrate scan` looks for, as it reads for a move from {origin.title} to "
        f"{chip.title}; `joymigrate explain RULE --to CHIP` shows another chip. "
        f"{len(known)} rules."
    )
    return f"# Rules\n\n{head}\n\n{listed.partition(NEXT)[2]}\n{each.partition(NEXT)[2]}"


NEXT = "\n\n"


if __name__ == "__main__":
    sys.stdout.buffer.write(reference().encode("utf-8"))
