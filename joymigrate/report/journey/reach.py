"""What of the rewritten code ran in a journey: a verdict speaks of that alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joymigrate.report.journey_words import say


def reach(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The figures on it; empty where the program was not run."""
    one = next((one for one in document["journey"] if one["name"] == "rehearse"), None)
    figures: Mapping[str, Any] = one["figures"] if one else {}
    return figures if "places" in figures else {}


def share(document: Mapping[str, Any]) -> str:
    """That not all of it ran, in words; empty where all did, or where the journey did not pass."""
    ran = reach(document)
    if document["verdict"] != "pass" or ran.get("places_run", 0) == ran.get("places", 0):
        return ""
    return say("reach", run=ran["places_run"], places=ran["places"])
