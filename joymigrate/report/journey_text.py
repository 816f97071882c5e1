"""A journey on a terminal, as Markdown for a pull request, and as JUnit for a build server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from joymigrate.report.journey_words import say

MARKS = {"done": "ok  ", "failed": "FAIL", "stopped": "STOP", "skipped": "-   ", "pending": "…   "}
NAME_WIDTH = 10


def text(document: Mapping[str, Any], lang: str = "en") -> str:
    """One screen: a line per step, then what to do."""
    lines = [title(document, lang), ""]
    for one in document["journey"]:
        lines.append(line(one, lang))
    for one in document["journey"]:
        if one["help"] and one["status"] in ("failed", "stopped"):
            lines += ["", f"{say('next', lang)} ({one['name']}):"]
            lines += [f"  {part}" for part in str(one["help"]).splitlines()]
    lines += ["", say(document["grade"], lang)]
    if document.get("rewrite_step"):
        lines.append(say("back", lang, step=document["rewrite_step"]))
    return "\n".join(lines) + "\n"


def line(one: Mapping[str, Any], lang: str) -> str:
    """One step."""
    took = f"  ({one['seconds']:.1f} s)" if one["seconds"] else ""
    return f"  {MARKS[one['status']]}  {one['name']:<{NAME_WIDTH}} {one['summary']}{took}"


def title(document: Mapping[str, Any], lang: str) -> str:
    """What came of it, in one line."""
    name = str(document["project"]).rstrip("/").rpartition("/")[2]
    verdict = say(document["verdict"], lang)
    return say("title", lang, project=name, chip=document["chip"], verdict=verdict)


def markdown(document: Mapping[str, Any], lang: str = "en") -> str:
    """For a pull request."""
    lines = [f"## {title(document, lang)}", "", say(document["grade"], lang), ""]
    lines += [
        f"| {say('step', lang)} | {say('status', lang)} | {say('result', lang)} "
        f"| {say('seconds', lang)} |",
        "|---|---|---|---:|",
    ]
    for one in document["journey"]:
        cells = (one["name"], say(one["status"], lang), one["summary"], f"{one['seconds']:.1f}")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    for one in document["journey"]:
        if one["help"]:
            lines += ["", f"**{one['name']}**", "", "```", str(one["help"]), "```"]
    if document.get("rewrite_step"):
        lines += ["", say("back", lang, step=document["rewrite_step"])]
    return "\n".join(lines) + "\n"


def junit(document: Mapping[str, Any]) -> str:
    """One test case per step."""
    cases = document["journey"]
    failures = sum(one["status"] in ("failed", "stopped") for one in cases)
    skipped = sum(one["status"] in ("skipped", "pending") for one in cases)
    total = sum(one["seconds"] for one in cases)
    out = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuite name="joymigrate.migrate" tests="{len(cases)}" failures="{failures}" '
        f'errors="0" skipped="{skipped}" time="{total:.2f}">',
    ]
    for one in cases:
        head = (
            f'  <testcase classname="joymigrate.migrate" name={quoteattr(one["name"])} '
            f'time="{one["seconds"]:.2f}">'
        )
        body = f"<system-out>{escape(clean(one['summary']))}</system-out>"
        if one["status"] in ("failed", "stopped"):
            body = (
                f"<failure message={quoteattr(clean(one['summary']))}>"
                f"{escape(clean(str(one['help'])))}</failure>"
            )
        elif one["status"] in ("skipped", "pending"):
            body = f"<skipped message={quoteattr(clean(one['summary']))}/>"
        out.append(f"{head}{body}</testcase>")
    out.append("</testsuite>")
    return "\n".join(out) + "\n"


def clean(text: str) -> str:
    """Text without the control characters that XML refuses."""
    return "".join(c for c in text if c in "\t\n\r" or ord(c) >= 32)
