"""Advice on recordings as text, JSON, Markdown and SARIF."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from joymigrate import __version__
from joymigrate.chips import Chip
from joymigrate.errors import JoyError
from joymigrate.evidence import count_grades, grade_line
from joymigrate.language import tell, tidy, with_texts
from joymigrate.profile.advice import Advice, Hit
from joymigrate.report.fields import fields
from joymigrate.report.json_ import dumps
from joymigrate.report.sarif import SCHEMA_URI

SCHEMA = "joymigrate.advice/1"
FORMATS = ("text", "json", "md", "html", "sarif")
MARKS = {"error": "!!", "warning": "! ", "note": "· "}

STRUCTURAL = (
    "No time of the chip was seen: what is said about speed follows from the structure alone."
)


def render(form: str, advice: Sequence[Advice], chip: Chip, traces: Sequence[str]) -> str:
    """The advice in one of `FORMATS`."""
    if form == "html":
        from joymigrate.report.html import advice as page

        return page.render(advice, chip, traces)
    writers = {"text": text, "json": json_text, "md": markdown, "sarif": sarif}
    if form not in writers:
        raise JoyError(f"--format does not know '{form}'", help=", ".join(FORMATS))
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
    mark = next((one for one in ("; instead: ", "；可改用：") if one in said), "; instead: ")
    what, mark, instead = said.partition(mark)
    return f"{where}{what}{module}{calls}{mark}{instead}"


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


def markdown(advice: Sequence[Advice], chip: Chip, traces: Sequence[str]) -> str:
    """A document with one section per rule."""
    parts = [
        f"# {tell('Advice for {chip}', chip=chip.title)}\n",
        tell("From {traces}.", traces=", ".join(f"`{name}`" for name in traces)) + "\n",
    ]
    if any(one.basis == "structural" for one in advice):
        parts.append(tell(STRUCTURAL) + "\n")
    for one in advice:
        rule = one.rule
        share = f" ({share_of(one)})" if one.share else ""
        parts.append(f"## {rule.id}: {tell(rule.title)}{share}\n")
        parts.append(
            tell("{problem}. **Do:** {action}.", problem=rule.problem, action=rule.action) + "\n"
        )
        if rule.gain:
            parts.append(tell("Gain: {gain}.", gain=rule.gain) + "\n")
        if rule.select:
            parts.append(f"`{rule.command}`\n")
        parts.append("\n".join(f"- {place_line(place)}" for place in one.places) + "\n")
        if rule.before:
            parts.append(f"```python\n# before\n{rule.before}\n# after\n{rule.after}\n```\n")
        parts.append(tell("Source: {source}.", source=rule.source) + "\n")
    if advice:
        parts.append(grade_line(count_grades(one.grade for one in advice)) + "\n")
    return "\n".join(parts)


def sarif(advice: Sequence[Advice], chip: Chip, traces: Sequence[str]) -> str:
    """A SARIF log with a result per place; places without a line belong to the recording."""
    rules = list({one.rule.id: one.rule for one in advice}.values())
    number = {rule.id: index for index, rule in enumerate(rules)}
    results = [
        {
            "ruleId": one.rule.id,
            "ruleIndex": number[one.rule.id],
            "level": one.rule.level,
            "message": {
                "text": tell(
                    "{what}: {problem}. {action}",
                    what=place.what,
                    problem=one.rule.problem,
                    action=one.rule.action,
                )
            },
            "locations": [location(place, one.trace)],
            "properties": {
                "calls": place.calls,
                "self_us": round(place.self_us, 3),
                "grade": one.grade,
            },
        }
        for one in advice
        for place in one.places
    ]
    driver = {
        "name": "joymigrate",
        "version": __version__,
        "rules": [
            {
                "id": rule.id,
                "name": tell(rule.title),
                "shortDescription": {"text": tell(rule.title)},
                "fullDescription": {"text": tell(rule.problem)},
                "help": {"text": f"{tell(rule.action)}\n\n{tell('Source')}: {rule.source}"},
                "defaultConfiguration": {"level": rule.level},
            }
            for rule in rules
        ],
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return dumps({"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]})


def location(place: Hit, trace: str) -> dict[str, Any]:
    """Where a result is: `file:line`, or the recording."""
    file, _, line = (place.where or "").rpartition(":")
    if not file or not line.isdigit():
        return {"physicalLocation": {"artifactLocation": {"uri": quote(trace)}}}
    artifact: dict[str, Any] = {"uri": quote(file)}
    if not file.startswith("/"):
        artifact["uriBaseId"] = "SRCROOT"
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": int(line)}}}
