"""Operators with several implementations, and the choice of the best correct one for a call."""

from joymigrate.run.kernels.operator import Call, Case, Implementation, Operator, Tolerance
from joymigrate.run.kernels.registry import (
    Kernel,
    forget_choices,
    op,
    operators,
    requested,
    requests,
)
from joymigrate.run.kernels.select import Choice

__all__ = [
    "Call",
    "Case",
    "Choice",
    "Implementation",
    "Kernel",
    "Operator",
    "Tolerance",
    "forget_choices",
    "op",
    "operators",
    "requested",
    "requests",
]
