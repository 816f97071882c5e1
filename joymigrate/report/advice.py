"""Advice on recordings: its document, in blocks, and as SARIF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from joymigrate.chips import Chip
from joymigrate.evidence import count_grades, grade_line
from joymigrate.language import mark, tell, with_texts
from joymigrate.profile.advice import Advice, Hit
from joymigrate.report.blocks import (
    Badge,
    Block,
    BlockDocument,
    Chapter,
    Fold,
    Paragraph,
    Preformatted,
    StackedBar,
    TableBlock,
    TileRow,
)
from joymigrate.report.fields import fields
from joymigrate.report.html.page import BarPart, Tile
from joymigrate.report.json_ import dumps
from joymigrate.report.sarif_log import SarifResult, SarifRule, artifact, locate, log

SCHEMA = "joymigrate.advice/1"
TIME = "Thousandths of the step's time. Rules may speak of the same time."
TONES = {"error": "report", "warning": "unsafe", "note": "safe"}
FIRST = 5  # places on a terminal

STRUCTURAL = (
    "No time of the chip was seen: what is said about speed follows from the structure alone."
)


def document(advice: Sequence[Advice], chip: Chip, traces: Sequence[str]) -> dict[str, Any]:
    """`joymigrate.advice/1`."""
    levels = {level: sum(a.rule.level == level for a in advice) for level in TONES}
    made = {
        "schema": SCHEMA,
        "to": chip.name,
        "traces": list(traces),
        "advice": [entry(one) for one in advice],
        "summary": {
            **levels,
            "rules": sorted({one.rule.id for one in advice}),
            "grades": count_grades(one.grade for one in advice),
        },
    }
    return with_texts(made)


def entry(one: Advice) -> dict[str, Any]:
    """One rule's advice."""
    rule = one.rule
    return {
        **fields(rule, "id title level"),
        **fields(one, "trace basis"),
        "grade": one.grade,
        **fields(rule, "problem action"),
        **{key: value or None for key, value in fields(rule, "gain before after").items()},
        **fields(rule, "api limits source"),
        "rewrite": rule.command,
        "share": None if one.share is None else round(one.share, 4),
        "places": [fields(place, "what where module calls self_us:3") for place in one.places],
        "more_places": one.more,
    }


def share_of(one: Advice) -> str:
    """`12.0% of the step`."""
    return tell("{share} of the step", share=f"{one.share or 0:.1%}")


def describe(advice: Sequence[Advice], chip: Chip, traces: Sequence[str]) -> BlockDocument:
    """What it costs; then per rule the places, and what to write instead."""
    counts = {level: sum(one.rule.level == level for one in advice) for level in TONES}
    top: list[Block] = [
        TileRow([Tile(str(n), f"{level}s", tone=TONES[level]) for level, n in counts.items()])
    ]
    shares = [
        BarPart(1000 * one.share, one.rule.id, TONES[one.rule.level]) for one in advice if one.share
    ]
    if shares:
        top += [StackedBar(shares), Paragraph(TIME)]
    if any(one.basis == "structural" for one in advice):
        top.append(Paragraph(STRUCTURAL))
    return BlockDocument(
        title=tell("Advice for {chip}", chip=chip.title),
        subtitle=" · ".join([*traces, grade_line(count_grades(one.grade for one in advice))]),
        chapters=[
            Chapter("summary", "Summary", top),
            *(describe_rule(one, f"{at}") for at, one in enumerate(advice)),
        ],
        footer="joymigrate profile advise",
        closing=[closing(advice, chip, traces)],
    )


def closing(advice: Sequence[Advice], chip: Chip, traces: Sequence[str]) -> str:
    """The last line."""
    found = len({one.rule.id for one in advice})
    kinds = "{number} kind of advice" if found == 1 else "{number} kinds of advice"
    return tell(
        "{kinds} for {chip} from {traces}.",
        kinds=tell(kinds, number=found), chip=chip.title, traces=", ".join(traces),
    )  # fmt: skip


def describe_rule(one: Advice, number: str) -> Chapter:
    """One rule's advice."""
    rule = one.rule
    stop = mark("stop").strip()
    blocks: list[Block] = [
        Paragraph(tell(rule.problem) + stop, Badge(rule.level, TONES[rule.level])),
        Paragraph(f"{tell('Do:')} {tell(rule.action)}{stop}"),
    ]
    if rule.gain:
        blocks.append(Paragraph(f"{tell('Gain')}: {tell(rule.gain)}{stop}"))
    if rule.select:
        blocks.append(Preformatted(rule.command or ""))
    rows = [
        (place.what, place.where or "", place.module or "", place.calls, round(place.self_us))
        for place in one.places
    ]
    blocks.append(TableBlock(("what", "where", "module", "calls", "µs"), rows, first=FIRST))
    if one.more:
        words = "… and {number} more places" if one.more > 1 else "… and {number} more place"
        blocks.append(Paragraph(tell(words, number=one.more)))
    if rule.before:
        shown = f"# before\n{rule.before}\n# after\n{rule.after}"
        blocks.append(Fold("Before and after", [Preformatted(shown, "python")], opened=True))
    blocks.append(Paragraph(f"{tell('Source')}: {rule.source}"))
    title = f"{rule.id}: {tell(rule.title)}"
    share = f" ({share_of(one)})" if one.share else ""
    count = len(one.places) + one.more
    return Chapter(f"{rule.id.lower()}-{number}", title + share, blocks, count, rule.id)


def sarif(advice: Sequence[Advice]) -> str:
    """A SARIF log with a result per place; places without a line belong to the recording."""
    return dumps(log([sarif_result(one, place) for one in advice for place in one.places]))


def sarif_result(one: Advice, place: Hit) -> SarifResult:
    """One place of an advice."""
    rule = one.rule
    title, problem, action = tell(rule.title), tell(rule.problem), tell(rule.action)
    about = {
        "fullDescription": {"text": problem},
        "help": {"text": f"{action}\n\n{tell('Source')}: {rule.source}"},
    }
    words = tell(
        "{what}: {problem}. {action}", what=place.what, problem=rule.problem, action=rule.action
    )
    where, region = locate(place.where or "")
    properties = {"calls": place.calls, "self_us": round(place.self_us, 3), "grade": one.grade}
    return SarifResult(
        SarifRule(rule.id, title, rule.level, title, about),
        words,
        where or artifact(one.trace),
        region,
        {"properties": properties},
    )
