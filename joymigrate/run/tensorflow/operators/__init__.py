"""TensorFlow's operators in torch and numpy: what a converted model runs on.

This folder is copied beside every converted model; it imports nothing but torch and numpy.
Numbers are tensors, texts are numpy arrays of bytes on the host.
"""

from joymigrate.run.tensorflow.operators import (
    arrays,
    control,
    indexing,
    segments,
    sparse,
    texts,
)
from joymigrate.run.tensorflow.operators.table import OPERATORS, GraphOperator, LookupTable

__all__ = [
    "OPERATORS",
    "GraphOperator",
    "LookupTable",
    "arrays",
    "control",
    "indexing",
    "segments",
    "sparse",
    "texts",
]
