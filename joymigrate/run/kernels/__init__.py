"""Operators with several implementations, and the choice of the best correct one for a call.

    from joymigrate.run import kernels

    y = kernels.op("rms_norm")(x, weight)                # the best implementation for this call
    report = kernels.apply(model, chip)                  # in a transformers model, reversible

Importing this package imports torch with the first operator, and transformers never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joymigrate.run.kernels.operator import (
    Call,
    Implementation,
    Operator,
    OperatorCase,
    OperatorTolerance,
)
from joymigrate.run.kernels.registry import (
    Kernel,
    forget_choices,
    op,
    operators,
    requested,
    requests,
)
from joymigrate.run.kernels.select import KernelChoice

if TYPE_CHECKING:
    from joymigrate.run.kernels.optimiser import AdamW
    from joymigrate.run.kernels.patch import Report, apply
    from joymigrate.run.kernels.weights import DenseWeight, Int4Weight, Int8Weight

# Names of modules that import torch, found when first used.
LATER = {
    "AdamW": "optimiser",
    "DenseWeight": "weights",
    "Int4Weight": "weights",
    "Int8Weight": "weights",
    "Report": "patch",
    "apply": "patch",
}


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{LATER[name]}"), name)


__all__ = [
    "AdamW",
    "Call",
    "DenseWeight",
    "Implementation",
    "Int4Weight",
    "Int8Weight",
    "Kernel",
    "KernelChoice",
    "Operator",
    "OperatorCase",
    "OperatorTolerance",
    "Report",
    "apply",
    "forget_choices",
    "op",
    "operators",
    "requested",
    "requests",
]
