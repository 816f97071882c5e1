"""Rewrite what is certain; the ledger keeps the way back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from joymigrate.journey import original
from joymigrate.journey.context import StepContext, StepFailed
from joymigrate.journey.model import JourneyRequest, StepOutcome, StepStatus
from joymigrate.journey.sites import LEFT
from joymigrate.language import Text
from joymigrate.ledger import Ledger

TELL = 200  # sites that the result names one by one


def words(request: JourneyRequest) -> list[str]:
    """The command that rewrites."""
    made = ["rewrite", ".", "--to", request.chip, "--style", request.style]
    made += ["--unsafe"] if request.unsafe else []
    made += ["--allow-dirty"] if request.allow_dirty else []
    return [*made, "--format", "json"]


def looking(request: JourneyRequest, path: str) -> list[str]:
    """The command that lists what is left."""
    common = ["scan", ".", "--to", request.chip, "--exit-zero", "--style", request.style]
    return [*common, "--format", "json", "-o", path]


def run(at: StepContext) -> StepOutcome:
    """Rewrite the project in place; what an earlier call rewrote counts as well."""
    done = at.joymigrate("rewrite/rewrite.json", *words(at.request))
    try:
        found = json.loads(done.log.read_text(encoding="utf-8"))
    except ValueError:
        raise StepFailed("the rewrite told no result", done.tail()) from None
    at.joymigrate("rewrite/left-log.txt", *looking(at.request, str(at.path(LEFT))))
    left = [site(one) for one in at.load(LEFT)["findings"]]
    project = at.request.project
    ledger = Ledger.of(project)
    steps = original.rewrites(ledger, project)
    edits = sum(int(step.details.get("edits", 0)) for step in steps)
    files = len({entry.path for step in steps for entry in original.entries(ledger, step)})
    at.rewrite_step = steps[0].id if steps else None
    text = (
        "{edits} edit{edits_s} in {files} file{files_s}, step {names}"
        if found.get("step")
        else "{edits} edit{edits_s} in {files} file{files_s}, step {names}, taken before"
    )
    names = ", ".join(step.id for step in steps)
    done_ = Text(text, edits=edits, files=files, names=names) if steps else "nothing to edit"
    rest = Text("{number} site{number_s} left to you", number=len(left))
    return StepOutcome(
        "rewrite",
        StepStatus.DONE,
        Text.join("; ", (done_, rest)),
        {
            "edits": edits,
            "files": files,
            "step": at.rewrite_step,
            "left": len(left),
            "sites": left[:TELL],
        },
        ("rewrite/rewrite.json", LEFT),
        verdict="pass",
    )


def site(finding: Mapping[str, Any]) -> dict[str, Any]:
    """A site that is left, as the result names it: lines are those of the rewritten code."""
    kept = ("rule", "tier", "path", "line", "before", "message", "reason")
    return {key: finding[key] for key in kept}
