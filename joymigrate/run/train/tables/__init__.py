"""Tables of embeddings larger than the device, with the calls of TorchRec.

    from joymigrate.run.train.tables import EmbeddingBagCollection, EmbeddingBagConfig

docs/tables.md has the whole; importing this package imports no torch before a name is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joymigrate.run.train.tables.configs import (
        Admission,
        DataType,
        EmbeddingBagConfig,
        EmbeddingConfig,
        Eviction,
        PoolingType,
        TableOptions,
    )
    from joymigrate.run.train.tables.embedding import EmbeddingBagCollection, EmbeddingCollection
    from joymigrate.run.train.tables.jagged import JaggedTensor, KeyedJaggedTensor
    from joymigrate.run.train.tables.keyed_tensor import KeyedTensor
    from joymigrate.run.train.tables.row_optimiser import RowOptimiser, apply_optimizer_in_backward
    from joymigrate.run.train.tables.table import Table

HOMES = {
    "Admission": "configs",
    "DataType": "configs",
    "EmbeddingBagCollection": "embedding",
    "EmbeddingBagConfig": "configs",
    "EmbeddingCollection": "embedding",
    "EmbeddingConfig": "configs",
    "Eviction": "configs",
    "JaggedTensor": "jagged",
    "KeyedJaggedTensor": "jagged",
    "KeyedTensor": "keyed_tensor",
    "PoolingType": "configs",
    "RowOptimiser": "row_optimiser",
    "Table": "table",
    "TableOptions": "configs",
    "apply_optimizer_in_backward": "row_optimiser",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)


__all__ = [
    "Admission",
    "DataType",
    "EmbeddingBagCollection",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingConfig",
    "Eviction",
    "JaggedTensor",
    "KeyedJaggedTensor",
    "KeyedTensor",
    "PoolingType",
    "RowOptimiser",
    "Table",
    "TableOptions",
    "apply_optimizer_in_backward",
]
