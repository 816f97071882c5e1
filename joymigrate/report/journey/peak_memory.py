"""What device memory held at its fullest, as sentences whose figures know their evidence."""

from __future__ import annotations

from joymigrate.report.journey.evidence import COUNT, MIB, JourneyFiles, JourneyStep
from joymigrate.report.journey.phrase import Phrase

MEMORY = "rehearse/memory.json"
# Categories in the order of the file, with the words and the tones that they have in the picture.
HELD = (
    ("weights", "weights", "link"),
    ("gradients", "gradients", "report-fill"),
    ("optimiser", "optimiser_states", "safe-fill"),
    ("activations", "activations", "unsafe-fill"),
    ("other", "other", "plain-fill"),
)


def fullest(at: JourneyFiles) -> int | None:
    """The process whose memory was looked into and held the most."""
    held = {
        number: one["held"]["peak"]["total_bytes"]
        for number, one in enumerate(at.at(MEMORY, "/processes") or ())
        if one.get("held")
    }
    return max(held, key=lambda number: held[number], default=None)


def sentences(step: JourneyStep) -> list[Phrase]:
    """What the memory held at its fullest."""
    at = step.evidence
    number = fullest(at)
    if number is None:
        return []
    base = f"/processes/{number}"
    figures = {key: at.figure(MIB, (MEMORY, f"{base}/held/peak/bytes/{key}")) for key, _, _ in HELD}
    figures["total"] = at.figure(MIB, (MEMORY, f"{base}/held/peak/total_bytes"))
    stepped = at.at(MEMORY, f"{base}/held/unit") == "step"
    if stepped:
        figures["steps"] = at.figure(COUNT, (MEMORY, f"{base}/held/steps"))
    made = [Phrase("found_held" if stepped else "found_held_unstepped", figures)]
    device = at.at(MEMORY, f"{base}/held/device")
    most = at.figure(MIB, (MEMORY, f"{base}/peak_bytes/{device}"))
    early = at.at(MEMORY, f"{base}/held/allocator_peak_bytes")
    if most is not None and most.value > early:
        made.append(Phrase("found_held_later", {"peak": most}))
    return made
