"""Rules explained: what one looks for, what it writes on which chip, with its examples.

`python -m joymigrate.report.rules` prints the reference of all rules.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any

from joymigrate import chips
from joymigrate.errors import JoyError, did_you_mean
from joymigrate.evidence import count_grades, grade_line
from joymigrate.language import HAN, Language, traits
from joymigrate.model import Case, Rule, Style, Tier
from joymigrate.report.fields import fields
from joymigrate.report.labels import Labels
from joymigrate.report.renderers.md import draw_in_table, escape, longest_run
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


def text(found: RuleExplanation, lang: str = "en") -> str:
    """The explanation for a terminal or a pipe."""
    lines = text_lines(found, Labels(lang))
    return "\n".join(wide(one) if traits(lang).wide else one for one in lines) + "\n"


def wide(line: str) -> str:
    """A line with full-width marks around Chinese words; code is left as it is."""
    if line.startswith("    "):
        return line
    line = re.sub(rf"({HAN.pattern}) \(([^()]*)\)", r"\1（\2）", line)
    for narrow, mark in ((":", "："), (";", "；")):
        line = re.sub(rf"({HAN.pattern}|）){narrow}(?: |$)", rf"\1{mark}", line)
    return re.sub(rf" \(([^()]*{HAN.pattern}[^()]*)\)$", r"（\1）", line)


def text_lines(found: RuleExplanation, say: Labels) -> Iterator[str]:
    """Title, tier, message, why, what is written where, examples, reference, how to silence."""
    rule = found.rule
    yield f"{rule.id} {rule.name}: {rule.title}"
    yield f"{say('tier')}: {rule.tier.value} ({say('note_' + rule.tier.value)})"
    yield f"{say('area')}: {say.area(rule.area)}; {say('weight')} {say.duration(rule.weight)}"
    yield ""
    yield sentence(rule.message)
    if rule.why:
        yield ""
        yield f"{say('why')}: {sentence(rule.why)}"
    if any(one.after for one in found.writings):
        yield ""
        yield f"{say('writing')}:"
        width = max(len(one.chip) for one in found.writings)
        for one in found.writings:
            yield f"  {one.chip:<{width}}  {change(one)}"
    if found.examples:
        yield ""
        yield f"{say('examples')} ({found.chip.name}):"
    for case in found.examples:
        yield ""
        for title, part in parts(case, say):
            yield f"  {title}"
            yield from (f"    {line}".rstrip() for line in part.rstrip("\n").splitlines())
    yield ""
    if rule.reference:
        yield f"{say('reference')}: {rule.reference}"
    yield grade_line(count_grades(["documented"]), say.tell)
    yield f"{say('silence')}: # joymigrate: ignore[{rule.id}] {say('reason').lower()}"


def change(one: Writing) -> str:
    """One chip's line of the table."""
    if one.after is None:
        return "-"
    return f"{one.before}  →  {one.after}"


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


def list_text(known: Mapping[str, Rule]) -> str:
    """All rules, one line each."""
    width = max(len(rule.name) for rule in known.values())
    lines = [
        f"{rule.id}  {rule.tier.value:<6}  {rule.name:<{width}}  {rule.title}"
        for rule in known.values()
    ]
    return "\n".join(lines) + "\n"


def list_document(known: Mapping[str, Rule], chip: chips.Chip) -> dict[str, Any]:
    """All rules as plain data, the contract `joymigrate.rules/1`."""
    listed = [fields(rule, LISTED) for rule in known.values()]
    return {"schema": LIST_SCHEMA, "to": chip.name, "rules": listed}


def list_markdown(known: Mapping[str, Rule], say: Labels, *, anchors: bool = False) -> str:
    """All rules as a Markdown table."""
    rows = [
        [f"[{r.id}](#{r.id.lower()})" if anchors else r.id, r.name, r.title, r.tier.value, r.area]
        for r in known.values()
    ]
    head = [say("rule"), "", say("what"), say("tier"), say("area")]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    lines += [f"| {line[0]} | {' | '.join(map(draw_in_table, line[1:]))} |" for line in rows]
    return "\n".join(lines) + "\n"


def markdown(found: RuleExplanation, lang: str = "en", *, level: int = 2) -> str:
    """The explanation as Markdown, under a heading of `level`."""
    return "\n".join(markdown_lines(found, Labels(lang), level)) + "\n"


def markdown_lines(found: RuleExplanation, say: Labels, level: int) -> Iterator[str]:
    """One rule's part of the reference."""
    rule = found.rule
    yield f"{'#' * level} {rule.id}"
    yield ""
    yield f"**{escape(rule.title)}** (`{rule.name}`)"
    yield ""
    yield (
        f"{say('tier')}: **{rule.tier.value}**, {say('note_' + rule.tier.value)}. "
        f"{say('area')}: {say.area(rule.area)}; {say('weight')} {say.duration(rule.weight)}."
    )
    yield ""
    yield capital(escape(sentence(rule.message)))
    yield ""
    if rule.why:
        yield capital(escape(sentence(rule.why)))
        yield ""
    if any(one.after for one in found.writings):
        rows = [(one.chip, one.tier.value, change(one)) for one in found.writings]
        yield from writing_table(rows, say)
        yield ""
    for case in found.examples:
        for title, part in parts(case, say):
            yield f"{title}:"
            yield ""
            yield from fence_lines(part, language(case.file))
            yield ""
    if rule.reference:
        yield f"{say('reference')}: {rule.reference}"
        yield ""


def capital(words: str) -> str:
    """A sentence with a capital and a full stop."""
    if HAN.search(words):
        return words + ("" if words.endswith(("。", "！", "？", "：")) else "。")
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?", ":")) else ".")


def writing_table(rows: Sequence[tuple[str, str, str]], say: Labels) -> Iterator[str]:
    """What is written on which chip."""
    yield f"| {say('chip')} | {say('tier')} | {say('writing')} |"
    yield "| --- | --- | --- |"
    for chip, tier, words in rows:
        shown = "`" + words.replace("`", "'").replace("|", "\\|") + "`" if "→" in words else words
        yield f"| {chip} | {tier} | {shown} |"


def fence_lines(code: str, name: str) -> Iterator[str]:
    """A block of code whose fence is longer than any run of backticks inside."""
    fence = "`" * max(3, 1 + longest_run(code, "`"))
    yield f"{fence}{name}"
    yield code.rstrip("\n")
    yield fence


def language(file: str) -> str:
    """The name that Markdown gives to a kind of file."""
    suffix = file.rpartition(".")[2] if "." in file else file.lower()
    return LANGUAGES.get(suffix, suffix)


def reference() -> str:
    """The page of every rule for the default chip."""
    chip, origin = chips.target(None), chips.origin()
    known = rules.load(chip, origin)
    say = Labels("en")
    head = (
        "# Rules\n\n"
        f"What `joymigrate scan` looks for, as it reads for a move from {origin.title} to "
        f"{chip.title}; `joymigrate explain RULE --to CHIP` shows another chip. "
        f"{len(known)} rules.\n\n"
        f"{grade_line(count_grades('documented' for _ in known))}\n"
    )
    blocks = [markdown(explain(key, chip, origin)) for key in known]
    return "\n".join([head, list_markdown(known, say, anchors=True), *blocks]).rstrip("\n") + "\n"


if __name__ == "__main__":
    sys.stdout.buffer.write(reference().encode("utf-8"))
