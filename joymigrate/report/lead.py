"""A journey on one page for whoever decides: verdict, what it covers, what is left, what next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from joymigrate.language import Language, current_language, tell
from joymigrate.report.documents.document_files import Opened
from joymigrate.report.documents.view import DocumentView
from joymigrate.report.journey.evidence import JourneyFiles, JourneyStep, steps
from joymigrate.report.journey.summary import step_name
from joymigrate.report.journey_text import in_short, title
from joymigrate.report.journey_words import say

MOST_NEXT = 5  # lines of advice
MOST_SITES = 5
ENDED = "done"


def page(document: Mapping[str, Any], path: Path) -> Opened:
    """The page as a document, for `documents.show`."""
    taken = steps(JourneyFiles(document))
    rewrite: Mapping[str, Any] = next(
        (step.raw["figures"] for step in taken if step.name == "rewrite"), {}
    )
    looked = sum(step.raw["status"] == ENDED and not step.doubtful for step in taken)
    body = {
        "verdict": document["verdict"],
        "grade": say(document["grade"]),
        "steps_with_a_result": f"{looked} / {len(taken)}",
        "left_by_hand": rewrite.get("left", "–"),
        "undo": say("back", step=document["rewrite_step"])
        if document.get("rewrite_step")
        else None,
        "steps": [
            {"step": step_name(step), "status": say(step.raw["status"]),
             "result": in_short(step)}
            for step in taken
        ],
        "not_looked_at": list(gaps(taken)),
        "to_change_by_hand": list(sites(rewrite, document)),
        "next": next_lines(taken),
    }  # fmt: skip
    kept = {key: value for key, value in body.items() if value not in (None, [])}
    what = tell("One page for a decision. Each figure is in the report with its evidence.")
    return Opened(kept, DocumentView("joymigrate.journey/1", title(document), what), path)


def gaps(taken: list[JourneyStep]) -> Iterator[dict[str, str]]:
    """What the verdict says nothing about: steps without a result, and why."""
    for step in taken:
        if step.raw["status"] != ENDED or step.doubtful:
            reason = step.step_text("summary").splitlines()
            yield {"step": step_name(step), "reason": reason[0] if reason else "–"}


def sites(rewrite: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The first places that people have to change."""
    translate = Language(current_language(), document.get("texts"))
    for site in rewrite.get("sites", ())[:MOST_SITES]:
        place = f"{site['path']}:{site['line']}"
        yield {"place": place, "rule": site["rule"], "message": translate(site["message"])}


def next_lines(taken: list[JourneyStep]) -> list[dict[str, str]]:
    """The advice of the first step that holds the journey up."""
    for step in taken:
        if step.raw["help"] and (step.raw["status"] in ("failed", "stopped") or step.doubtful):
            lines = step.step_text("help").strip().splitlines()
            return [{"line": line.strip()} for line in lines[:MOST_NEXT] if line.strip()]
    return []
