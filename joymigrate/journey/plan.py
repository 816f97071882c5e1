"""The steps of a journey in their order, and why one is left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from joymigrate.journey import steps
from joymigrate.journey.model import Outcome, Request
from joymigrate.journey.travelling import Travelling


@dataclass(frozen=True, slots=True)
class Planned:
    """One step to come. `skip` says why it will be left out; None: it will run."""

    name: str
    title: str
    run: Callable[[Travelling], Outcome]
    skip: str | None = None


def plan(request: Request) -> list[Planned]:
    """All steps, in order."""
    no_entry = None if request.entry else "no program was named with --entry"
    return [
        Planned("scan", "find what is tied to the origin", steps.scan.run),
        Planned("rewrite", "rewrite what is certain", steps.rewrite.run),
        Planned("rehearse", "run it on the chip", steps.rehearse.run, no_entry),
        Planned("coverage", "which operators the chip has", steps.coverage.run, no_entry),
        Planned("advice", "what would make it fast", steps.advice.run, no_entry),
        Planned("verify", "compare with the baseline", steps.verify.run, no_entry),
        Planned("train", "a training run beside the baseline's", steps.train.run, no_entry),
        Planned("serve", "serve the model and ask it", steps.serve.run, None),
    ]


NAMES = ("scan", "rewrite", "rehearse", "coverage", "advice", "verify", "train", "serve")
