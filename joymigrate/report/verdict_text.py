"""A verdict for the terminal: the outcome, why, where it begins, and what was compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from joymigrate.report import verdict_parts
from joymigrate.report.verdict_words import counts, figure, headline, place, worst

SHOWN = 12


def render(document: Mapping[str, Any], *, verbose: bool = False) -> str:
    """The whole text. `verbose` shows passed records too."""
    lines = [headline(document)]
    if document.get("reason"):
        lines.append(f"  {document['reason']}")
    first = document.get("first_divergence")
    if first:
        lines.append(f"first divergence: {place(first)}")
        lines.append(
            f"  {first['metric']} {figure(first['value'])}, limit {figure(first['limit'])}"
        )
        lines += [f"  {key}: {first[key]}" for key in ("cause", "evidence") if first.get(key)]
    for part in verdict_parts.of(document):
        lines += part.text()
    lines += stages(document)
    lines += records(document, verbose)
    lines.append(coverage(document))
    return "\n".join(lines) + "\n"


def stages(document: Mapping[str, Any]) -> Iterator[str]:
    """One line per stage, where there are several."""
    found = document.get("stages", ())
    for stage in found if len(found) > 1 else ():
        why = f": {stage['reason']}" if stage.get("reason") else ""
        share = f" {stage['compared']}/{stage['recorded']}" if stage.get("recorded") else ""
        yield f"{stage['stage']} {stage['verdict']:<12} {stage['title']}{share}{why}"


def records(document: Mapping[str, Any], verbose: bool) -> Iterator[str]:
    """The worst records; those that passed only when asked for."""
    for record in worst(document, len(document["records"]) if verbose else SHOWN):
        if not verbose and record["status"] in ("PASS", "IDENTICAL"):
            continue
        where = place(record)
        why = f" ({record['reason']})" if record.get("reason") else ""
        yield (
            f"{record['status']:<12} {where}: {record['metric']} {figure(record['value'])}, "
            f"limit {figure(record['limit'])}{why}"
        )


def coverage(document: Mapping[str, Any]) -> str:
    """The last line: what was compared."""
    found = document["coverage"]
    parts = ", ".join(f"{number} {status}" for status, number in counts(document).items())
    return (
        f"Compared {found['compared']:,} of {found['recorded']:,}{f' ({parts})' if parts else ''}."
    )
