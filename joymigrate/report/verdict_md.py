"""A verdict as one Markdown page: outcome, first divergence, stages, figures, worst records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from joymigrate.language import tell
from joymigrate.report.verdict_kinds import parts_of
from joymigrate.report.verdict_parts import escape, table
from joymigrate.report.verdict_words import (
    MEANING,
    code_line,
    compared_records,
    counts,
    covers_program,
    figure,
    headline,
    join_parts,
    part_of,
    place,
    remarks,
    worst,
)

SHOWN = 30


def render(document: Mapping[str, Any]) -> str:
    """The whole page."""
    lines = ["# " + tell("Verdict: {headline}", headline=headline(document)), ""]
    lines += [tell(MEANING[document["verdict"]]), ""]
    if document.get("reason"):
        lines += [escape(document["reason"]), ""]
    lines += divergence(document.get("first_divergence"))
    lines += stages(document)
    for part in parts_of(document):
        lines += part.markdown()
    lines += records(document)
    lines += sides(document)
    return "\n".join(lines).rstrip("\n") + "\n"


def divergence(first: Mapping[str, Any] | None) -> Iterator[str]:
    """Where the two runs part, and why by the look of it."""
    if not first:
        return
    yield "## " + tell("First divergence")
    yield ""
    yield tell(
        "**{place}**: {metric} {value}, limit {limit}.",
        place=escape(place(first)), metric=escape(first["metric"]),
        value=figure(first["value"]), limit=figure(first["limit"]),
    )  # fmt: skip
    for key in ("cause", "evidence"):
        if first.get(key):
            yield tell("{title}: {text}.", title=tell(key).capitalize(), text=escape(first[key]))
    if code_line(first):
        yield tell(
            "{title}: {text}.", title=tell("line").capitalize(), text=f"`{code_line(first)}`"
        )
    yield ""


def stages(document: Mapping[str, Any]) -> Iterator[str]:
    """One row per stage."""
    found = document.get("stages", ())
    if not found:
        return
    rows = [
        [
            stage["stage"],
            stage["title"],
            stage["verdict"],
            part_of(stage["compared"], stage["recorded"]),
            remarks(stage),
        ]
        for stage in found
    ]
    yield "## " + tell("Stages")
    yield ""
    yield from table(["", "what", "verdict", "compared", "why"], rows)
    yield ""


def records(document: Mapping[str, Any]) -> Iterator[str]:
    """Coverage and the worst records."""
    found = document["coverage"]
    yield "## " + tell("Coverage")
    yield ""
    share = part_of(found["compared"], found["recorded"])
    if covers_program(document):
        share = part_of(*compared_records(document))
        yield tell("Compared {share} records of all stages.", share=share)
    else:
        yield tell("Compared {share}.", share=share)
    parts = counts(document)
    if parts:
        numbers = join_parts(f"{n:,} {escape(s)}" for s, n in parts.items())
        yield tell("Records: {numbers}.", numbers=numbers)
    for name in list(found.get("uncompared", ()))[:SHOWN]:
        yield f"- {tell('not compared')}: {escape(name)}"
    shown = worst(document, SHOWN)
    if shown:
        head = ["status", "where", "metric", "value", "limit", "why"]
        rows = [
            [
                *(r["status"], place(r), r["metric"], figure(r["value"]), figure(r["limit"])),
                r.get("reason") or (r.get("consequence_of") or ""),
            ]
            for r in shown
        ]
        yield ""
        yield "## " + tell("Records, the worst first")
        yield ""
        yield from table(head, rows)
    yield ""


def sides(document: Mapping[str, Any]) -> Iterator[str]:
    """What is known about both sides."""
    both = [document.get(name) or {} for name in ("baseline", "target")]
    rows = side_rows(*both)
    if rows:
        yield "## " + tell("Environment")
        yield ""
        yield from table(["", "baseline", "target"], rows)
        yield ""


def side_rows(baseline: Mapping[str, Any], target: Mapping[str, Any]) -> list[list[str]]:
    """The two sides key by key, nested ones by their dotted path."""
    flat = [dict(flatten(side)) for side in (baseline, target)]
    keys = dict.fromkeys([*flat[0], *flat[1]])
    return [[key, *(figure(side.get(key)) for side in flat)] for key in keys]


def flatten(side: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings; lists as text."""
    for key, value in side.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{before}{key}.")
        elif isinstance(value, list | tuple):
            yield f"{before}{key}", ", ".join(map(str, value))
        else:
            yield f"{before}{key}", value
