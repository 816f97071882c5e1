"""Every distinct operator call of a trace, replayed on a device against a golden in float64.

`replay(calls, target, options)` gives one `ReplayResult` per call and case: the recorded shapes,
edge inputs, gradients. What could not be compared says why.
"""

from __future__ import annotations

from joymigrate.verify.ops.call import ReplayCall, TensorArg
from joymigrate.verify.ops.read import read_calls
from joymigrate.verify.ops.replay import ReplayOptions, ReplayResult, replay
from joymigrate.verify.ops.target import ReplayTarget

__all__ = [
    "ReplayCall",
    "ReplayOptions",
    "ReplayResult",
    "ReplayTarget",
    "TensorArg",
    "read_calls",
    "replay",
]
