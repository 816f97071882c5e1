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
    from joymigrate.run.train.tables.parallel_model import DistributedModelParallel, shard_tables
    from joymigrate.run.train.tables.planner import ShardingPlan, make_plan
    from joymigrate.run.train.tables.row_optimiser import RowOptimiser, apply_optimizer_in_backward
    from joymigrate.run.train.tables.table import Table
    from joymigrate.run.train.tables.table_pipeline import TablePipeline

HOMES = {
    "Admission": "configs",
    "DataType": "configs",
    "DistributedModelParallel": "parallel_model",
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
    "ShardingPlan": "planner",
    "Table": "table",
    "TableOptions": "configs",
    "TablePipeline": "table_pipeline",
    "apply_optimizer_in_backward": "row_optimiser",
    "make_plan": "planner",
    "shard_tables": "parallel_model",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)


__all__ = [
    "Admission",
    "DataType",
    "DistributedModelParallel",
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
    "ShardingPlan",
    "Table",
    "TableOptions",
    "TablePipeline",
    "apply_optimizer_in_backward",
    "make_plan",
    "shard_tables",
]
