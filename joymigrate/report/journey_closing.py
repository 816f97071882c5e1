"""The last words of a journey on a terminal, where its steps were shown as they went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.cells import cell_len, set_cell_size

from joymigrate.language import Language, current_language
from joymigrate.report.journey.evidence import JourneyFiles, steps
from joymigrate.report.journey.summary import step_name
from joymigrate.report.journey_text import fold, not_reached, title, ways_on, what_it_is
from joymigrate.report.journey_words import say

MOST_HELP = 14  # lines of one step's advice
MOST_SITES = 5
WIDTH = 88


def closing(document: Mapping[str, Any], report: str) -> str:
    """The verdict, what to do next, the way back, where the report lies."""
    lines = ["", title(document)]
    for step in steps(JourneyFiles(document)):
        one = step.raw
        if one["help"] and (one["status"] in ("failed", "stopped") or doubtful(one)):
            lines += [
                "",
                say("next_of", step=step_name(step)),
                *advice(step.step_text("help")),
            ]
    lines += todo_lines(document)
    lines += [truncate(line) for line in not_reached(document)]
    lines += [*what_it_is(document), *ways_on(document)]
    return "\n".join([*lines, say("report", path=report)]) + "\n"


def doubtful(one: Mapping[str, Any]) -> bool:
    """A step that ended and decided nothing."""
    return bool(one["status"] == "done" and one["verdict"] == "inconclusive")


def advice(text: str) -> list[str]:
    """A step's advice, cut to what a screen takes."""
    lines = text.strip().splitlines()
    shown = [part for line in lines[:MOST_HELP] for part in break_line(line)]
    return [*shown, "  …"] if len(lines) > MOST_HELP else shown


def break_line(line: str) -> list[str]:
    """One line of advice, indented; a command stays whole, to be copied."""
    text = line.strip()
    indent = " " * (2 + len(line) - len(line.lstrip()))
    if "joymigrate " in text and len(indent) > 2:
        return [indent + text]
    return [indent + part for part in fold(text, WIDTH - len(indent))] or [""]


def todo_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """The sites that are the user's to mend, the first of them by name."""
    rewrite = next((one for one in document["journey"] if one["name"] == "rewrite"), None)
    sites = rewrite["figures"].get("sites") if rewrite else None
    if not sites:
        return
    tell = Language(current_language(), document.get("texts"))
    yield ""
    yield say("left_sites", count=rewrite["figures"]["left"] if rewrite else len(sites))
    for site in sites[:MOST_SITES]:
        said = tell(site["message"])
        yield truncate(f"  {site['path']}:{site['line']}  {site['rule']}  {said}")
    if len(sites) > MOST_SITES:
        yield "  …  joymigrate scan ."


def truncate(line: str) -> str:
    """A line that fits; wide characters take two columns."""
    if cell_len(line) <= WIDTH:
        return line
    return f"{set_cell_size(line, WIDTH - 1).rstrip()}…"
