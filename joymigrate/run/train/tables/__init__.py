"""Tables of embeddings larger than the device, with the calls of TorchRec.

    from joymigrate.run.train.tables import EmbeddingBagCollection, EmbeddingBagConfig

docs/how-to/tables.md has the whole; importing this package imports no torch before a name is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joymigrate.run.train.tables.configs import (
        AdmissionRule,
        DataType,
        EmbeddingBagConfig,
        EmbeddingConfig,
        Eviction,
        PoolingType,
        TableOptions,
    )
    from joymigrate.run.train.tables.dlrm import (
        DLRM,
        DenseArch,
        DLRMTrain,
        InteractionArch,
        OverArch,
        SparseArch,
    )
    from joymigrate.run.train.tables.embedding import (
        EmbeddingBagCollection,
        EmbeddingCollection,
    )
    from joymigrate.run.train.tables.jagged import (
        JaggedTensor,
    )
    from joymigrate.run.train.tables.keyed_jagged import (
        KeyedJaggedTensor,
    )
    from joymigrate.run.train.tables.keyed_tensor import (
        KeyedTensor,
    )
    from joymigrate.run.train.tables.optimisers import (
        CombinedOptimizer,
        KeyedOptimizerWrapper,
        RowWiseAdagrad,
        fused_optimizer,
        in_backward_optimizer_filter,
    )
    from joymigrate.run.train.tables.parallel_model import (
        DistributedModelParallel,
        shard_tables,
    )
    from joymigrate.run.train.tables.planner import (
        ShardingPlan,
        make_plan,
    )
    from joymigrate.run.train.tables.random_batches import (
        DEFAULT_CAT_NAMES,
        DEFAULT_INT_NAMES,
        DEFAULT_LABEL_NAME,
        RandomBatch,
        RandomRecDataset,
    )
    from joymigrate.run.train.tables.row_optimiser import (
        RowOptimiser,
        apply_optimizer_in_backward,
    )
    from joymigrate.run.train.tables.table import (
        Table,
    )
    from joymigrate.run.train.tables.table_pipeline import (
        TablePipeline,
    )
    from joymigrate.run.train.tables.torch_modules import (
        put_on_tables,
    )
    from joymigrate.run.train.tables.wire import (
        CommType,
        EmbeddingBagCollectionSharder,
        EmbeddingCollectionSharder,
        QCommsConfig,
        get_qcomm_codecs_registry,
    )

HOMES = {
    "AdmissionRule": "configs",
    "RandomBatch": "random_batches",
    "CombinedOptimizer": "optimisers",
    "CommType": "wire",
    "DEFAULT_CAT_NAMES": "random_batches",
    "DEFAULT_INT_NAMES": "random_batches",
    "DEFAULT_LABEL_NAME": "random_batches",
    "DLRM": "dlrm",
    "DLRMTrain": "dlrm",
    "DataType": "configs",
    "DenseArch": "dlrm",
    "DistributedModelParallel": "parallel_model",
    "EmbeddingBagCollection": "embedding",
    "EmbeddingBagCollectionSharder": "wire",
    "EmbeddingBagConfig": "configs",
    "EmbeddingCollection": "embedding",
    "EmbeddingCollectionSharder": "wire",
    "EmbeddingConfig": "configs",
    "Eviction": "configs",
    "InteractionArch": "dlrm",
    "JaggedTensor": "jagged",
    "KeyedJaggedTensor": "keyed_jagged",
    "KeyedOptimizerWrapper": "optimisers",
    "KeyedTensor": "keyed_tensor",
    "OverArch": "dlrm",
    "PoolingType": "configs",
    "QCommsConfig": "wire",
    "RandomRecDataset": "random_batches",
    "RowOptimiser": "row_optimiser",
    "RowWiseAdagrad": "optimisers",
    "ShardingPlan": "planner",
    "SparseArch": "dlrm",
    "Table": "table",
    "TableOptions": "configs",
    "TablePipeline": "table_pipeline",
    "apply_optimizer_in_backward": "row_optimiser",
    "fused_optimizer": "optimisers",
    "get_qcomm_codecs_registry": "wire",
    "in_backward_optimizer_filter": "optimisers",
    "make_plan": "planner",
    "put_on_tables": "torch_modules",
    "shard_tables": "parallel_model",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{HOMES[name]}"), name)


__all__ = [
    "DEFAULT_CAT_NAMES",
    "DEFAULT_INT_NAMES",
    "DEFAULT_LABEL_NAME",
    "DLRM",
    "AdmissionRule",
    "CombinedOptimizer",
    "CommType",
    "DLRMTrain",
    "DataType",
    "DenseArch",
    "DistributedModelParallel",
    "EmbeddingBagCollection",
    "EmbeddingBagCollectionSharder",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingCollectionSharder",
    "EmbeddingConfig",
    "Eviction",
    "InteractionArch",
    "JaggedTensor",
    "KeyedJaggedTensor",
    "KeyedOptimizerWrapper",
    "KeyedTensor",
    "OverArch",
    "PoolingType",
    "QCommsConfig",
    "RandomBatch",
    "RandomRecDataset",
    "RowOptimiser",
    "RowWiseAdagrad",
    "ShardingPlan",
    "SparseArch",
    "Table",
    "TableOptions",
    "TablePipeline",
    "apply_optimizer_in_backward",
    "fused_optimizer",
    "get_qcomm_codecs_registry",
    "in_backward_optimizer_filter",
    "make_plan",
    "put_on_tables",
    "shard_tables",
]
