"""What would make the program fast on the chip."""

from __future__ import annotations

from pathlib import Path

from joymigrate.journey.context import StepContext
from joymigrate.journey.model import JourneyRequest, StepOutcome, StepStatus
from joymigrate.journey.steps.coverage import TRACE
from joymigrate.language import Text


def words(request: JourneyRequest, form: str, path: str) -> list[str]:
    """The command that gives advice on the recording beside `path`."""
    trace = str(Path(path).parent.parent / TRACE)
    return ["profile", "advise", trace, "--to", request.chip, "--format", form, "-o", path]


def run(at: StepContext) -> StepOutcome:
    """Advice from the recording of the step before. Advice never stops a journey."""
    known = at.before.get("coverage")
    if known is not None and not known.figures.get("operators"):
        return StepOutcome("advice", StepStatus.SKIPPED, "no operator was recorded")
    for form, name in (("json", "advice.json"), ("html", "advice.html")):
        path = str(at.path(f"advice/{name}"))
        at.joymigrate(f"advice/log-{form}.txt", *words(at.request, form, path))
    found = at.load("advice/advice.json")["advice"]
    rules = sorted({one["id"] for one in found})
    return StepOutcome(
        "advice",
        StepStatus.DONE,
        Text(
            "{number} hint{number_s}: {rules}" if rules else "{number} hint{number_s}",
            number=len(found),
            rules=", ".join(rules[:6]),
        ),
        {"advice": len(found), "rules": rules},
        ("advice/advice.json", "advice/advice.html"),
        verdict="pass",
    )
