"""The pictures of each step, and the tables that say more than a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from joymigrate.report.html.page import Html
from joymigrate.report.journey.evidence import JourneyStep
from joymigrate.report.journey.execution import rehearse, train
from joymigrate.report.journey.operators import advice, coverage
from joymigrate.report.journey.precision import precision
from joymigrate.report.journey.source import rewrite, scan

PICTURES: dict[str, Callable[[JourneyStep], Iterator[Html]]] = {
    "scan": scan,
    "rewrite": rewrite,
    "rehearse": rehearse,
    "coverage": coverage,
    "advice": advice,
    "verify": precision,
    "train": train,
}


def pictures(step: JourneyStep) -> Iterator[Html]:
    """What a step shows better than it says."""
    shown = PICTURES.get(step.name)
    if shown is not None:
        yield from shown(step)
