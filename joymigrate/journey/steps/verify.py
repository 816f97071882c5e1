"""Compare the program on the chip with a baseline of this machine."""

from __future__ import annotations

from joymigrate.journey.gates import refuses
from joymigrate.journey.model import Outcome, Status
from joymigrate.journey.travelling import StepFailed, Travelling


def run(at: Travelling) -> Outcome:
    """Record the baseline on the GPU (or the CPU), replay it on the chip, judge."""
    bundle = str(at.path("verify/baseline.jmb"))
    words = ["verify", "record", "--force", "-o", bundle, "--steps", at.request.steps]
    done = at.joymigrate("verify/record-log.txt", *words, "--", *at.request.entry, ok=range(256))
    if not at.path("verify/baseline.jmb").exists():
        raise StepFailed(f"no baseline was recorded (exit code {done.code})", done.tail())
    result = at.path("verify/verdict.json")
    replay = ["verify", "replay", bundle, "--to", at.request.chip, "--format", "json"]
    replay += ["-o", str(result)]
    replay += ["--map", str(at.request.map)] if at.request.map else []
    replay += [] if at.chip_here else ["--rehearse"]
    done = at.joymigrate("verify/replay-log.txt", *replay, "--", *at.request.entry, ok=range(256))
    if not result.is_file():
        raise StepFailed(f"the replay gave no verdict (exit code {done.code})", done.tail())
    found = at.load("verify/verdict.json")
    verdict, first = found["verdict"], found["first_divergence"]
    held = refuses(at.gates.verify, verdict)
    where = f"; first divergence in {first['module']} ({first['phase']})" if first else ""
    return Outcome(
        "verify",
        Status.STOPPED if held else Status.DONE,
        f"{verdict}{where}",
        {
            "verdict": verdict,
            "first_divergence": first,
            "coverage": found["coverage"],
            "stages": [
                {"stage": one["stage"], "verdict": one["verdict"]}
                for one in found.get("stages", [])
            ],
        },
        ("verify/verdict.json",),
        verdict=verdict,
        help=(first or {}).get("cause") or done.tail() if held else "",
    )
