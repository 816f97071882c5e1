"""Why an optimiser updates known tensors otherwise: it is another class, or its code makes other
calls. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joymigrate.language import Text
from joymigrate.verify.calls import MOST, cause_of
from joymigrate.verify.model import Cause
from joymigrate.verify.optimiser_stage import CLOSE, apart, unequal


def cause_of_update(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Cause | None:
    """The first difference in what both sides' code calls, for the first wrong update of one
    optimiser step, as `optimisers.probe` recorded it; another class, where its code differs in more
    than one place. None where the calls are the same."""
    for mine, other in zip(ours["probe"], theirs["probe"], strict=False):
        keys = mine["settings"].keys() & other["settings"].keys()
        if any(unequal(mine["settings"][key], other["settings"][key]) for key in keys):
            continue
        results = zip(mine["results"], other["results"], strict=False)
        pairs = [(a, b) for a, b in results if "updates" in a and "updates" in b]
        if all(apart(a["updates"], b["updates"]) <= CLOSE for a, b in pairs):
            continue
        names = [str(one["class"]) for one in (ours, theirs)]
        if ours.get("module") and theirs.get("module"):  # an older baseline does not say it
            names = [f"{one['module']}.{one['class']}" for one in (ours, theirs)]
        alike = names[0] == names[1]
        diff = cause_of(mine.get("trace"), other.get("trace"), MOST if alike else 1)
        if diff is None and not alike:
            text = "the optimiser is {have}, {want} in the baseline"
            return Cause("another class", Text(text, have=names[1], want=names[0]), "fact")
        return Cause(diff.cause, diff.words, "diff", diff.lines) if diff is not None else None
    return None
