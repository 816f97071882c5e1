"""What would make the program fast on the chip."""

from __future__ import annotations

from joymigrate.journey.model import Outcome, Status
from joymigrate.journey.travelling import Travelling


def run(at: Travelling) -> Outcome:
    """Advice from the recording of the step before. Advice never stops a journey."""
    trace = str(at.path("coverage/trace.jsonl.gz"))
    for form, name in (("json", "advice.json"), ("html", "advice.html")):
        at.joymigrate(
            f"advice/log-{form}.txt",
            "profile", "advise", trace, "--to", at.request.chip, "--format", form,
            "-o", str(at.path(f"advice/{name}")),
        )  # fmt: skip
    found = at.load("advice/advice.json")["advice"]
    rules = sorted({one["id"] for one in found})
    return Outcome(
        "advice",
        Status.DONE,
        f"{len(found)} pieces of advice" + (f": {', '.join(rules[:6])}" if rules else ""),
        {"advice": len(found), "rules": rules},
        ("advice/advice.json", "advice/advice.html"),
        verdict="pass",
    )
