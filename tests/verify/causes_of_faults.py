"""Which causes are right for which fault.

A cause that is a fact about a place (other settings, other data, another formula of the loss) is
right where the fault lies there, as `where` said before any run. One that an experiment found has to
be written down here for the fault. What is not written is wrong.
"""

# ruff: noqa: E501  names of faults, as tables

from __future__ import annotations

from tests.verify.whole_faults import WholeFault

# cause → words of `where` of which one must be there
PLACES = {
    "loss": "loss",
    "optimiser settings": "update schedule",
    "optimiser code": "update",
    "weights changed by hand": "update state",
    "training mode": "mode",
    "gradients on or off": "mode",
    "other data": "input",
    "other settings": "forward",
    "other weights": "weights state",
    "loaded state": "weights state",
    "gradients after the backward pass": "gradients backward",
    "gradient scale": "gradients backward loss",
}
# Faults that multiply everything that is computed there by one number (in one step).
SCALED = """
loss times 1.1; padding counted; not divided by the parts; clipped lower; not clipped; norm of a bucket;
norm without the root; not unscaled before clipping; router bias with the wrong sign; router bias faster;
generator's sign; scaler: last part short; scaler: sum not by rows; scaler: divisor of accumulation;
scaler: clipped before unscaling; series: clip by two; series: divided by the rows alone;
translate: clipped by norm; queue: backward without the mean; moe: clip; moe: unscaled;
accelerate: only the student clipped by half; Trainer: clipped lower; Trainer: not clipped;
Trainer: padding in the divisor; series: clip after the step; stream: padding in the divisor;
stream: divisor of the parts; ema: parts not divided; ema: clip lower; sum for mean;
accelerate: projection clipped too; CTC summed; class weight; func: sum for mean; moe: dead rows;
accelerate: no accumulation; queue: slow copy updated after;
""".replace("\n", " ")
# Differences of both sides' calls: the fault is the one place where the programs' sources differ.
DIFFS = ("another argument", "another operator", "another type", "another shape", "other operators",
         "an operator added", "an operator left out", "reduced precision")  # fmt: skip
# Other experiments: cause → faults.
TRIED = {
    "scale": SCALED,
    "update scale": "Lion's warm-up longer; moe: factor of the shape; rate of functional SGD; func: rate; "
    "ema: second moment late",
    "eps or scale": "final: other heat; moe: load by tokens; serve: scale; moe: load; Trainer: rms eps",
    "eps": "Trainer: rms eps",
    "mask": "serve: mask of one more",
    "dropout": "graph: average in training mode; eval forgotten before the search",
    "stale values": "",
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
