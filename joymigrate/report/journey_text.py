"""A journey on a terminal, as Markdown for a pull request, and as JUnit for a build server."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from rich.cells import cell_len

from joymigrate.chips import get
from joymigrate.errors import JoyError
from joymigrate.evidence import grade_line
from joymigrate.report.journey.evidence import JourneyFiles, JourneyStep, steps
from joymigrate.report.journey.reach import reach, share
from joymigrate.report.journey.sentences import short
from joymigrate.report.journey.summary import step_name
from joymigrate.report.journey_words import say
from joymigrate.report.junit import JunitCase
from joymigrate.report.junit import render as suite
from joymigrate.report.text import Paint

# A wide character stands for itself; what is not wide stays together up to the next space.
PIECES = re.compile(r"[\u2e80-\uffef]\s*|[^\s\u2e80-\uffef]+\s*|\s+")
MARKS = {"done": "ok  ", "failed": "FAIL", "stopped": "STOP", "skipped": "-   ", "pending": "…   "}
STYLES = {"done": "green", "failed": "red", "stopped": "red", "skipped": "dim", "pending": "dim"}
WIDTH = 88  # columns that the summary keeps to
MOST_PLACES = 5  # statements that did not run
MOST_LEFT = 4  # files and folders that a run left


def text(document: Mapping[str, Any], *, color: bool = False) -> str:
    """One screen: a line per step, then what to do. `color` is for terminals only."""
    paint = Paint(color)
    evidence = JourneyFiles(document)
    taken = steps(evidence)
    names = max((cell_len(step_name(step)) for step in taken), default=0)
    verdict = "green" if document["verdict"] == "pass" else "yellow"
    verdict = "red" if document["verdict"] == "fail" else verdict
    lines = [paint(title(document), "bold", verdict), ""]
    for step in taken:
        if step.raw["status"] != "pending":
            lines += row(step, names, paint)
    pending = [step_name(one) for one in taken if one.raw["status"] == "pending"]
    if pending:
        told = say("not_reached", steps=", ".join(pending))
        lines += [f"  {paint(MARKS['pending'], 'dim')}  {told}"]
    for step in taken:
        if step.raw["help"] and (step.raw["status"] in ("failed", "stopped") or step.doubtful):
            lines += ["", paint(say("next_of", step=step_name(step)), "bold")]
            lines += [f"  {part}" for part in step.step_text("help").splitlines()]
    lines += not_reached(document)
    lines += what_it_is(document)
    if any((document.get("grades") or {}).values()):
        lines.append(grade_line(document["grades"]))
    lines += ways_on(document)
    return "\n".join(lines) + "\n"


def what_it_is(document: Mapping[str, Any]) -> list[str]:
    """That a rehearsal is no measurement, where a program ran on a chip at all."""
    states = [one["status"] for one in document["journey"] if one["name"] == "rehearse"]
    ran = bool(states) and states[0] not in ("pending", "skipped")
    return ["", *fold(say(document["grade"]), WIDTH)] if ran else [""]


def ways_on(document: Mapping[str, Any]) -> list[str]:
    """The way back, and the command that goes on."""
    step, command = document.get("rewrite_step"), document.get("command")
    lines = [say("back", step=step)] if step else []
    left = document.get("left", [])
    if left:
        names = ", ".join((*left[:MOST_LEFT], *("…" for _ in left[MOST_LEFT : MOST_LEFT + 1])))
        lines += fold(say("left_by_run", names=names), WIDTH)
    rehearsed = "_rehearsed" if document["grade"] == "rehearsed" else ""
    kind = f"then_{document['verdict']}{rehearsed}"
    if command and kind in ("then_fail", "then_fail_rehearsed", "then_pass_rehearsed"):
        lines.append(say(kind.replace("fail_rehearsed", "fail"), command=command))
    return lines


def row(step: JourneyStep, names: int, paint: Paint) -> list[str]:
    """One step: mark, name, what it found, seconds at the right edge; folded where it is long."""
    status, seconds = step.raw["status"], step.raw["seconds"]
    took = f"{seconds:.1f} s" if seconds else ""
    style = "yellow" if step.doubtful else STYLES[status]
    name = step_name(step)
    head = f"  {paint(MARKS[status], style)}  {name}{' ' * (names - cell_len(name))}  "
    indent = 10 + names
    room = WIDTH - indent - 10
    first, *rest = fold(in_short(step), room) or [""]
    first += " " * (room - cell_len(first))
    made = f"{head}{first}{paint(took.rjust(10), 'dim')}".rstrip()
    return [made, *(" " * indent + part for part in rest)]


def in_short(step: JourneyStep) -> str:
    """What a step found, in one sentence."""
    phrase = short(step)
    if phrase is None:
        return step.step_text("summary")
    return phrase.text()


def fold(text: str, width: int) -> list[str]:
    """Text in lines of at most `width` columns; a wide character takes two of them and may end a
    line, other words stay whole."""
    lines, line = [], ""
    for part in PIECES.findall(text):
        if cell_len(line + part.rstrip()) > width and line:
            lines.append(line.rstrip())
            line = ""
        line += part if line else part.lstrip()
    return [*lines, line.rstrip()] if line.strip() else lines


def title(document: Mapping[str, Any]) -> str:
    """What came of it, in one line."""
    name = str(document["project"]).rstrip("/").rpartition("/")[2]
    rehearsed = "_rehearsed" if document["grade"] == "rehearsed" else ""
    early = any(s["name"] == "rewrite" and s["status"] == "pending" for s in document["journey"])
    lacks = "_lacking" if document.get("whose") == "environment" else ""
    ended = any(step["status"] in ("failed", "stopped") for step in document["journey"])
    said = f"fail_early{lacks}" if ended else "begun_early"
    verdict = say(said if early else f"{document['verdict']}{rehearsed}")
    part = share(document)
    verdict = f"{verdict} ({part})" if part else verdict
    return say("title", project=name, chip=chip_title(document["chip"]), verdict=verdict)


def not_reached(document: Mapping[str, Any]) -> list[str]:
    """What was rewritten and did not run, the first of it by name."""
    ran, lines = reach(document), []
    rest = ran.get("not_run") or []
    if rest:
        count, entry = ran["places"] - ran["places_run"], shlex.join(document["entry"])
        lines += ["", *fold(say("not_run", entry=entry, count=count), WIDTH)]
        lines += [f"  {one['path']}:{one['line']}  {one['text']}" for one in rest[:MOST_PLACES]]
        lines += ["  …"] * (len(rest) > MOST_PLACES)
    if ran.get("not_python"):
        lines += ["", *fold(say("not_python", files=", ".join(ran["not_python"])), WIDTH)]
    return lines


def chip_title(name: str) -> str:
    """What a chip is called; its short name where it is not known here."""
    try:
        return get(name).title
    except JoyError:
        return name


def markdown(document: Mapping[str, Any]) -> str:
    """For a pull request."""
    lines = [f"## {title(document)}", "", say(document["grade"]), ""]
    lines += [
        f"| {say('step')} | {say('status')} | {say('result')} | {say('seconds')} |",
        "|---|---|---|---:|",
    ]
    taken = steps(JourneyFiles(document))
    for step in taken:
        status, seconds = say(step.raw["status"]), f"{step.raw['seconds']:.1f}"
        cells = (step.name, status, step.step_text("summary"), seconds)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    for step in taken:
        if step.raw["help"]:
            lines += ["", f"**{step.name}**", "", "```", step.step_text("help"), "```"]
    rest = not_reached(document)
    lines += ["", "```", *rest[1:], "```"] if rest else []
    if document.get("rewrite_step"):
        lines += ["", say("back", step=document["rewrite_step"])]
    return "\n".join(lines) + "\n"


def junit(document: Mapping[str, Any]) -> str:
    """One test case per step."""
    cases = []
    for step in steps(JourneyFiles(document)):
        status, said = step.raw["status"], step.step_text("summary")
        failed, left_out = status in ("failed", "stopped"), status in ("skipped", "pending")
        cases.append(
            JunitCase(
                step.name,
                step.raw["seconds"],
                failure=said if failed else None,
                details=step.step_text("help"),
                skipped=said if left_out else None,
                output=said,
            )
        )
    return suite("joymigrate.migrate", "joymigrate.migrate", cases)
