"""Quantised weights on disk: compressed-tensors and msmodelslim, read and written.

    reader = open_quantised(folder)          # None where the weights are plain
    reader.linear("model.layers.0.mlp.up_proj")   # Int8Linear, Int4Linear or None

Tensors are mapped safetensors, read one by one; foreign formats are refused with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joymigrate.run.train.formats.open import QuantisedReader, open_quantised
    from joymigrate.run.train.formats.stored_linears import Int4Linear, Int8Linear, Linear
    from joymigrate.run.train.formats.tensors import TensorFolder, TensorSource
    from joymigrate.run.train.formats.write import FormatWriter

# Names of modules that import torch, found when first used.
LATER = {
    "TensorFolder": "tensors",
    "Int4Linear": "stored_linears",
    "Int8Linear": "stored_linears",
    "Linear": "stored_linears",
    "QuantisedReader": "open",
    "TensorSource": "tensors",
    "FormatWriter": "write",
    "open_quantised": "open",
}

__all__ = [
    "FormatWriter",
    "Int4Linear",
    "Int8Linear",
    "Linear",
    "QuantisedReader",
    "TensorFolder",
    "TensorSource",
    "open_quantised",
]


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{LATER[name]}"), name)
