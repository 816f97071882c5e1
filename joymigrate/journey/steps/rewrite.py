"""Rewrite what is certain; the ledger keeps the way back."""

from __future__ import annotations

import json

from joymigrate.journey.model import Outcome, Status
from joymigrate.journey.travelling import StepFailed, Travelling


def run(at: Travelling) -> Outcome:
    """Rewrite the project in place. Nothing to rewrite is well, too."""
    words = ["rewrite", ".", "--to", at.request.chip, "--style", at.request.style]
    words += ["--unsafe"] if at.request.unsafe else []
    words += ["--allow-dirty"] if at.request.allow_dirty else []
    done = at.joymigrate("rewrite/rewrite.json", *words, "--format", "json")
    try:
        found = json.loads(done.log.read_text(encoding="utf-8"))
    except ValueError:
        raise StepFailed("the rewrite told no result", done.tail()) from None
    summary, step = found["summary"], found.get("step")
    at.rewrite_step = step
    edits, files = summary["edits"], summary["files"]
    text = f"{edits} edits in {files} files, step {step}" if step else "nothing left to rewrite"
    return Outcome(
        "rewrite",
        Status.DONE,
        text,
        {"edits": edits, "files": files, "step": step},
        ("rewrite/rewrite.json",),
        verdict="pass",
    )
