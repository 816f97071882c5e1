"""Quantise a model folder: W8A8 by SmoothQuant, W4A16 by AWQ, and a verdict on the result.

    made = quantise(model, out, samples, Options(scheme="w8a8"))
    verdict, document = judge(model, out, samples)

Layer by layer: memory holds one layer's weights and the samples' states, whatever the model's
size. The model's code is transformers'; it is built empty and filled one layer at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joymigrate.run.train.quantise.data import CalibrationSamples, read_samples
    from joymigrate.run.train.quantise.options import QuantiseOptions
    from joymigrate.run.train.quantise.verdict import judge
    from joymigrate.run.train.quantise.work import QuantisationResult, quantise

LATER = {
    "QuantisationResult": "work",
    "QuantiseOptions": "options",
    "CalibrationSamples": "data",
    "judge": "verdict",
    "quantise": "work",
    "read_samples": "data",
}

__all__ = [
    "CalibrationSamples",
    "QuantisationResult",
    "QuantiseOptions",
    "judge",
    "quantise",
    "read_samples",
]


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{LATER[name]}"), name)
