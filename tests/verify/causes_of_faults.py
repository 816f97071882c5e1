"""Which causes are right for which fault.

A cause that is a fact about a place (other settings, another mode) is right where the fault lies
there, as `where` said before any run. One that an experiment found has to be written down here for
the fault. What is not written is wrong.
"""

from __future__ import annotations

from tests.verify.whole_faults import WholeFault

# cause → words of `where` of which one must be there
PLACES = {
    "optimiser settings": "update schedule",
    "optimiser code": "update",
    "weights changed by hand": "update state",
    "training mode": "mode",
    "gradients on or off": "mode",
    "other settings": "forward",
    "loaded state": "weights state",
    "gradient scale": "gradients backward loss",
}
# Differences of both sides' calls: the fault is the one place where the programs' sources differ.
DIFFS = ("another argument", "another operator", "another type", "another shape", "other operators",
         "an operator added", "an operator left out", "reduced precision")  # fmt: skip
# Facts of modules: cause → faults.
TRIED = {
    "dropout": "graph: average in training mode; eval forgotten before the search",
    "shape": "",
}


def right_cause(fault: WholeFault, cause: str) -> bool:
    """Whether a cause that a verdict names is the fault's."""
    if cause in DIFFS:
        return True
    listed = TRIED.get(cause)
    if listed is not None:
        return fault.name in [name.strip() for name in listed.split(";")]
    return any(place in PLACES.get(cause, "").split() for place in fault.where.split())
