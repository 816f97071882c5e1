"""Tables of embeddings larger than the device, with the calls of TorchRec.

    from joymigrate.run.train.tables import EmbeddingBagCollection, EmbeddingBagConfig

docs/how-to/tables.md has the whole.
"""

from __future__ import annotations

from joymigrate.run.train.tables.configs import AdmissionRule as AdmissionRule
from joymigrate.run.train.tables.configs import DataType as DataType
from joymigrate.run.train.tables.configs import EmbeddingBagConfig as EmbeddingBagConfig
from joymigrate.run.train.tables.configs import EmbeddingConfig as EmbeddingConfig
from joymigrate.run.train.tables.configs import Eviction as Eviction
from joymigrate.run.train.tables.configs import PoolingType as PoolingType
from joymigrate.run.train.tables.configs import TableOptions as TableOptions
from joymigrate.run.train.tables.dlrm import DLRM as DLRM
from joymigrate.run.train.tables.dlrm import DenseArch as DenseArch
from joymigrate.run.train.tables.dlrm import DLRMTrain as DLRMTrain
from joymigrate.run.train.tables.dlrm import InteractionArch as InteractionArch
from joymigrate.run.train.tables.dlrm import OverArch as OverArch
from joymigrate.run.train.tables.dlrm import SparseArch as SparseArch
from joymigrate.run.train.tables.embedding import EmbeddingBagCollection as EmbeddingBagCollection
from joymigrate.run.train.tables.embedding import EmbeddingCollection as EmbeddingCollection
from joymigrate.run.train.tables.jagged import JaggedTensor as JaggedTensor
from joymigrate.run.train.tables.keyed_jagged import KeyedJaggedTensor as KeyedJaggedTensor
from joymigrate.run.train.tables.keyed_tensor import KeyedTensor as KeyedTensor
from joymigrate.run.train.tables.optimisers import CombinedOptimizer as CombinedOptimizer
from joymigrate.run.train.tables.optimisers import KeyedOptimizerWrapper as KeyedOptimizerWrapper
from joymigrate.run.train.tables.optimisers import RowWiseAdagrad as RowWiseAdagrad
from joymigrate.run.train.tables.optimisers import fused_optimizer as fused_optimizer
from joymigrate.run.train.tables.optimisers import (
    in_backward_optimizer_filter as in_backward_optimizer_filter,
)
from joymigrate.run.train.tables.parallel_model import (
    DistributedModelParallel as DistributedModelParallel,
)
from joymigrate.run.train.tables.parallel_model import shard_tables as shard_tables
from joymigrate.run.train.tables.planner import ShardingPlan as ShardingPlan
from joymigrate.run.train.tables.planner import make_plan as make_plan
from joymigrate.run.train.tables.random_batches import DEFAULT_CAT_NAMES as DEFAULT_CAT_NAMES
from joymigrate.run.train.tables.random_batches import DEFAULT_INT_NAMES as DEFAULT_INT_NAMES
from joymigrate.run.train.tables.random_batches import DEFAULT_LABEL_NAME as DEFAULT_LABEL_NAME
from joymigrate.run.train.tables.random_batches import RandomBatch as RandomBatch
from joymigrate.run.train.tables.random_batches import RandomRecDataset as RandomRecDataset
from joymigrate.run.train.tables.row_optimiser import RowOptimiser as RowOptimiser
from joymigrate.run.train.tables.row_optimiser import (
    apply_optimizer_in_backward as apply_optimizer_in_backward,
)
from joymigrate.run.train.tables.table import Table as Table
from joymigrate.run.train.tables.table_pipeline import TablePipeline as TablePipeline
from joymigrate.run.train.tables.torch_modules import put_on_tables as put_on_tables
from joymigrate.run.train.tables.wire import CommType as CommType
from joymigrate.run.train.tables.wire import (
    EmbeddingBagCollectionSharder as EmbeddingBagCollectionSharder,
)
from joymigrate.run.train.tables.wire import (
    EmbeddingCollectionSharder as EmbeddingCollectionSharder,
)
from joymigrate.run.train.tables.wire import QCommsConfig as QCommsConfig
from joymigrate.run.train.tables.wire import get_qcomm_codecs_registry as get_qcomm_codecs_registry
