"""A journey as a comment on a pull request: Markdown that fits into one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joymigrate.report.journey_text import markdown

MOST = 65_000  # characters; GitHub takes 65,536 and GitLab more
FENCE = "```"


def comment(document: Mapping[str, Any], lang: str = "en") -> str:
    """The Markdown of a journey, cut at a line where it is too long; the table comes first."""
    text = markdown(document, lang)
    if len(text) <= MOST:
        return text
    end = f"\n{FENCE}\n\n…\n"
    kept = text[: MOST - len(end)].rpartition("\n")[0]
    return kept + (end if kept.count(f"\n{FENCE}") % 2 else "\n\n…\n")
