"""A verdict for the terminal: the outcome, why, where it begins, and what was compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from joymigrate.language import mark, pad, tell, tidy
from joymigrate.report.verdict_kinds import parts_of
from joymigrate.report.verdict_words import (
    code_line,
    compared_records,
    counts,
    covers_program,
    figure,
    headline,
    join_parts,
    part_of,
    place,
    worst,
)

SHOWN = 12


def render(document: Mapping[str, Any], *, verbose: bool = False) -> str:
    """The whole text. `verbose` shows passed records too."""
    lines = [headline(document)]
    if document.get("reason"):
        lines.append(f"  {tell(document['reason'])}")
    first = document.get("first_divergence")
    if first:
        lines.append(tell("first divergence: {place}", place=place(first)))
        lines.append(f"  {describe_metric(first)}")
        lines += [
            f"  {tell(key)}: {tell(first[key])}" for key in ("cause", "evidence") if first.get(key)
        ]
        if code_line(first):
            lines.append(f"  {tell('line')}: {code_line(first)}")
    for part in parts_of(document):
        lines += part.text()
    lines += stages(document)
    lines += records(document, verbose)
    lines.append(coverage(document))
    return tidy("\n".join(lines)) + "\n"


def colon() -> str:
    """What stands before a reason."""
    return mark("colon")


def stages(document: Mapping[str, Any]) -> Iterator[str]:
    """One line per stage, where there are several."""
    found = document.get("stages", ())
    for stage in found if len(found) > 1 else ():
        why = f"{colon()}{tell(stage['reason'])}" if stage.get("reason") else ""
        share = f" {stage['compared']}/{stage['recorded']}" if stage.get("recorded") else ""
        outcome, title = pad(tell(stage["verdict"]), 12), tell(stage["title"])
        yield f"{stage['stage']} {outcome} {title}{share}{why}"


def records(document: Mapping[str, Any], verbose: bool) -> Iterator[str]:
    """The worst records; those that passed only when asked for."""
    for record in worst(document, len(document["records"]) if verbose else SHOWN):
        if not verbose and record["status"] in ("PASS", "IDENTICAL"):
            continue
        where = place(record)
        why = f" ({tell(record['reason'])})" if record.get("reason") else ""
        yield f"{pad(tell(record['status']), 12)} {where}: {describe_metric(record)}{why}"


def describe_metric(record: Mapping[str, Any]) -> str:
    """The metric, its value and its limit."""
    return tell(
        "{metric} {value}, limit {limit}",
        metric=record["metric"], value=figure(record["value"]), limit=figure(record["limit"]),
    )  # fmt: skip


def coverage(document: Mapping[str, Any]) -> str:
    """The last line: what was compared."""
    found = document["coverage"]
    parts = join_parts(f"{number} {tell(status)}" for status, number in counts(document).items())
    share = part_of(found["compared"], found["recorded"])
    if covers_program(document):  # what was compared of it stands in lines of its own
        words = "Compared {share} records of all stages: {parts}."
        return tell(words, share=part_of(*compared_records(document)), parts=parts or "-")
    if parts:
        return tell("Compared {share} ({parts}).", share=share, parts=parts)
    return tell("Compared {share}.", share=share)
