"""Every distinct operator call of a trace, replayed on a device against a golden in float64.

`replay(calls, target, options)` gives one `Result` per call and case: the recorded shapes, edge
inputs, gradients. What could not be compared says why.
"""

from __future__ import annotations

from joymigrate.verify.ops.call import Call, TensorArg
from joymigrate.verify.ops.read import read_calls
from joymigrate.verify.ops.replay import Options, Result, replay
from joymigrate.verify.ops.target import Target

__all__ = ["Call", "Options", "Result", "Target", "TensorArg", "read_calls", "replay"]
