"""A journey as one HTML page: how it went, what is left, what every step found, with evidence.

Every figure is a link to the file that it was read from, with the place in that file. The page is
one file and asks nothing of a network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from joymigrate.language import current_language
from joymigrate.report.html import page
from joymigrate.report.html.page import Html, Page, Section, escape
from joymigrate.report.journey.evidence import (
    FINE_SECONDS,
    SECONDS,
    JourneyFiles,
    JourneyStep,
    steps,
)
from joymigrate.report.journey.origin import origin
from joymigrate.report.journey.phrase import WORDS, tell
from joymigrate.report.journey.pictures import pictures
from joymigrate.report.journey.sentences import describe_step, effort, gate
from joymigrate.report.journey.summary import closing_words, step_name, summary, todo_section, tone
from joymigrate.report.journey_text import title
from joymigrate.report.journey_words import say


def render(document: Mapping[str, Any], folder: Path, *, link: str = "") -> str:
    """The page; `folder` holds the evidence, `link` is the way to it from where the page lies."""
    evidence = JourneyFiles(document, folder, link)
    sections = [summary(evidence), todo_section(evidence)]
    sections += [step_section(step) for step in steps(evidence)]
    sections.append(origin(evidence))
    entry = " ".join(document["entry"])
    return Page(
        title=title(document),
        subtitle=entry,
        sections=sections,
        footer=say(f"grade_{document['grade']}"),
        scripts=("journey.js",),
        styles=("journey.css",),
    ).render()


def step_section(step: JourneyStep) -> Section:
    """One step: what it is for, its result, its pictures, its evidence, its commands."""
    return Section(step.name, step_name(step), Html("".join(step_parts(step))))


def step_parts(step: JourneyStep) -> Iterator[str]:
    """The parts of a step's section."""
    raw, at = step.raw, step.evidence
    about = "about_rehearse_chip" if on_the_chip(step) else f"about_{step.name}"
    if about in WORDS:
        yield f'<p class="note">{escape(tell(about))}</p>'
    yield f'<div class="found">{page.badge(say(raw["status"]), tone(step))} '
    yield f"<p>{result(step)}</p></div>"
    if raw["help"] and urgent(step):
        yield f"<h3>{escape(say('next'))}</h3><pre>{escape(step.step_text('help'))}</pre>"
    if raw["status"] in ("done", "stopped", "failed"):
        yield from pictures(step)
    if raw["evidence"]:
        links = ", ".join(at.file(name) for name in raw["evidence"])
        took = step.own(SECONDS if raw["seconds"] >= 1 else FINE_SECONDS, "seconds")
        seconds = escape(say("took")).format(seconds=at.html(took))
        shown = escape(say("evidence_of")).format(links=links, seconds=seconds)
        yield f'<p class="source">{shown}</p>'
    if raw["commands"]:
        lines = Html(f"<pre>{escape(chr(10).join(raw['commands']))}</pre>")
        yield page.details(say("repeat"), lines)


def urgent(step: JourneyStep) -> bool:
    """Whether a step's advice is more than a remark."""
    return step.raw["status"] in ("failed", "stopped") or step.doubtful


def needs_own_words(step: JourneyStep) -> bool:
    """Whether the step's own words hold a reason that our sentences don't."""
    return step.raw["status"] == "done" and step.raw["verdict"] in ("fail", "inconclusive")


def on_the_chip(step: JourneyStep) -> bool:
    """Whether the program ran on the chip itself."""
    return step.name == "rehearse" and step.evidence.document["grade"] == "measured"


def sentence(text: Html) -> Html:
    """A step's own words, with the full stop that they lack beside other sentences."""
    ended = re.sub(r"<[^>]*>", "", text).endswith((".", "。", "!", "?"))
    return text if ended or not text else Html(text + ("." if current_language() == "en" else "。"))


def result(step: JourneyStep) -> Html:
    """What a step found, in sentences; in its own words where it failed or did nothing."""
    status, at = step.raw["status"], step.evidence
    if status in ("skipped", "pending", "failed"):
        return closing_words(step)
    phrases = describe_step(step)
    held = gate(step) if status == "stopped" else None
    if held is not None:
        phrases = [held, *phrases]
    if step.name == "scan":
        phrases.append(effort(step))
    shown = [one.html(at) for one in phrases if one.whole]
    if not shown or (status == "stopped" and held is None) or needs_own_words(step):
        shown = [sentence(closing_words(step)), *shown]
    return Html((" " if current_language() == "en" else "").join(shown))
