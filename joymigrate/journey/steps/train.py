"""A training run on the chip beside one on this machine: the loss curves must agree."""

from __future__ import annotations

from joymigrate.journey.gates import refuses
from joymigrate.journey.losses import write_curve
from joymigrate.journey.model import Outcome, Status
from joymigrate.journey.travelling import StepFailed, Travelling


def run(at: Travelling) -> Outcome:
    """Run the program on both sides and compare what it prints as its loss."""
    base = at.plain("train/baseline-log.txt")
    other = at.joymigrate(
        "train/chip-log.txt", *at.on_chip(), "--", *at.request.entry, ok=range(256)
    )
    for name, done in (("baseline", base), ("chip", other)):
        if done.code != 0:
            raise StepFailed(f"the run on the {name} ended with {done.code}", done.tail())
    counts = [
        write_curve(done.log, at.path(f"train/{name}.jsonl"))
        for name, done in (("baseline", base), ("chip", other))
    ]
    logs = ("train/baseline-log.txt", "train/chip-log.txt")
    if not all(counts):
        return Outcome(
            "train",
            Status.DONE,
            "both runs ended well; the program prints no loss to compare",
            {"losses": counts},
            logs,
            verdict="inconclusive",
        )
    words = (
        "verify",
        "loss",
        str(at.path("train/baseline.jsonl")),
        str(at.path("train/chip.jsonl")),
    )
    result = str(at.path("train/loss.json"))
    at.joymigrate("train/loss-log.txt", *words, "--format", "json", "-o", result, ok=(0, 1, 3))
    found = at.load("train/loss.json")
    verdict = found["verdict"]
    held = refuses(at.gates.loss, verdict)
    return Outcome(
        "train",
        Status.STOPPED if held else Status.DONE,
        f"{counts[1]} losses against {counts[0]} of the baseline: {verdict}",
        {"losses": counts, "verdict": verdict, "loss": found.get("loss")},
        ("train/baseline.jsonl", "train/chip.jsonl", "train/loss.json", *logs),
        verdict=verdict,
        help="the curves lie in train/; joymigrate verify bisect narrows it down" if held else "",
    )
