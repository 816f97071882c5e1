"""Advice on recordings as text, JSON, Markdown and SARIF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from joymigrate.chips import Chip
from joymigrate.evidence import count_grades, grade_line
from joymigrate.language import mark, tell, tidy, with_texts
from joymigrate.profile.advice import Advice, Hit
from joymigrate.report import renderers
from joymigrate.report.blocks import (
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
MARKS = {"error": "!!", "warning": "! ", "note": "· "}

STRUCTURAL = (
    "No time of the chip was seen: what is said about speed follows from the structure alone."
)


def render(form: str, advice: Sequence[Advice], chip: Chip, traces: Sequence[str]) -> str:
    """The advice in one of its formats."""
    if form in renderers.DRAWN:
        return renderers.render(describe(advice, chip, traces), form)
    writers = {"text": text, "json": json_text, "sarif": sarif}
    return writers[form](advice, chip, traces)


def document(advice: Sequence[Advice], chip: Chip, traces: Sequence[str]) -> dict[str, Any]:
    """`joymigrate.advice/1`."""
    levels = {level: sum(a.rule.level == level for a in advice) for level in MARKS}
    return {
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


def json_text(advice: Sequence[Advice], chip: Chip, traces: Sequence[str]) -> str:
    """The document as JSON."""
    return dumps(with_texts(document(advice, chip, traces)))


def place_line(place: Hit) -> str:
    """One place in a line."""
    where = f"{place.where}: " if place.where else ""
    module = tell(" in {module}", module=place.module) if place.module else ""
    calls = tell(" ({number} calls)", number=place.calls) if place.calls > 1 else ""
    said = tell(place.what)
    between = next((one for one in ("; instead: ", "；可改用：") if one in said), "; instead: ")
    what, between, instead = said.partition(between)
    return f"{where}{what}{module}{calls}{between}{instead}"


def text(advice: Sequence[Advice], chip: Chip, traces: Sequence[str]) -> str:
    """For a terminal: the costly first."""
    lines = []
    for one in advice:
        rule = one.rule
        share = f"  {share_of(one)}" if one.share else ""
        lines.append(f"{MARKS[rule.level]} {rule.id}  {tell(rule.title)}{share}")
        lines += [f"     {place_line(place)}" for place in one.places[:5]]
        hidden = len(one.places) - 5 + one.more
        if hidden > 0:
            many = "… and {number} more places" if hidden > 1 else "… and {number} more place"
            lines.append("     " + tell(many, number=hidden))
        lines.append(f"   {tell('why:')} {tell(rule.problem)}")
        lines.append(f"   {tell('do: ')} {tell(rule.action)}")
        if rule.gain:
            lines.append(f"   {tell('gain:')} {tell(rule.gain)}")
        if rule.select:
            lines.append(f"   {tell('by: ')} {rule.command}")
        lines += [*snippet("-", rule.before), *snippet("+", rule.after), ""]
    if any(one.basis == "structural" for one in advice):
        lines += [tell(STRUCTURAL), ""]
    if advice:
        lines += [grade_line(count_grades(one.grade for one in advice)), ""]
    found = len({one.rule.id for one in advice})
    kinds = "{number} kind of advice" if found == 1 else "{number} kinds of advice"
    lines.append(
        tell(
            "{kinds} for {chip} from {traces}.",
            kinds=tell(kinds, number=found),
            chip=chip.title,
            traces=", ".join(traces),
        )
    )
    return tidy("\n".join(lines)) + "\n"


def share_of(one: Advice) -> str:
    """`12.0% of the step`."""
    return tell("{share} of the step", share=f"{one.share or 0:.1%}")


def snippet(sign: str, code: str) -> list[str]:
    """Lines of an example."""
    return [f"     {sign} {line}" for line in code.splitlines()]


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
    )


def describe_rule(one: Advice, number: str) -> Chapter:
    """One rule's advice."""
    rule = one.rule
    stop = mark("stop").strip()
    blocks: list[Block] = [
        Paragraph(tell(rule.problem) + stop),
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
    blocks.append(TableBlock(("what", "where", "module", "calls", "µs"), rows))
    if rule.before:
        shown = f"# before\n{rule.before}\n# after\n{rule.after}"
        blocks.append(Fold("Before and after", [Preformatted(shown, "python")], opened=True))
    blocks.append(Paragraph(f"{tell('Source')}: {rule.source}"))
    title = f"{rule.id}: {tell(rule.title)}"
    share = f" ({share_of(one)})" if one.share else ""
    count = len(one.places) + one.more
    return Chapter(f"{rule.id.lower()}-{number}", title + share, blocks, count, rule.id)


def sarif(advice: Sequence[Advice], chip: Chip, traces: Sequence[str]) -> str:
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
