"""TorchRec's `EmbeddingBagCollection` and `EmbeddingCollection`, over tables of any size.

    tables = [EmbeddingBagConfig(1000, 16, "t", feature_names=["f"])]
    ebc = EmbeddingBagCollection(tables)          # weights are parameters, as in torch
    ebc = EmbeddingBagCollection(tables, optimiser=RowOptimiser("adagrad", lr=0.05),
                                 options=TableOptions(dynamic=True, cache_rows=100_000))

Without `optimiser` a table is an `nn.EmbeddingBag` (`nn.Embedding`) whose weight any optimiser of
torch trains. With one it is a `Table`: rows in tiers, updated in the backward pass. `state_dict`
has the rows of both; between processes `Checkpointer` and `train export` save them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from joymigrate.errors import JoyError
from joymigrate.run import kernels
from joymigrate.run.train.tables.collection_parts import (
    Options,
    check_static,
)
from joymigrate.run.train.tables.configs import (
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
    TableConfig,
    torch_dtype,
)
from joymigrate.run.train.tables.jagged import JaggedTensor
from joymigrate.run.train.tables.keyed_jagged import KeyedJaggedTensor
from joymigrate.run.train.tables.keyed_tensor import KeyedTensor
from joymigrate.run.train.tables.route import Lines, TableRoute, select
from joymigrate.run.train.tables.row_optimiser import RowOptimiser
from joymigrate.run.train.tables.table_collection import TableCollection


class EmbeddingBagCollection(TableCollection):
    """Pooled rows of every feature: `KeyedJaggedTensor` -> `KeyedTensor` [B, sum of dims].

    The first three arguments are TorchRec's. `optimiser` and `options` (for all tables, or by name)
    make tables that are updated in the backward pass; see the module's text.
    """

    MODULES = "embedding_bags"

    def __init__(
        self,
        tables: list[EmbeddingBagConfig],
        is_weighted: bool = False,
        device: torch.device | str | None = None,
        *,
        optimiser: RowOptimiser | None = None,
        options: Options = None,
    ) -> None:
        self._is_weighted = is_weighted
        self._embedding_bag_configs = tables
        for config in tables:
            if is_weighted and config.pooling is PoolingType.MEAN:
                raise JoyError(
                    "a mean of weighted rows has no one meaning: torch refuses it, fbgemm divides "
                    "by the number of values, others by the sum of the weights",
                    where=f"table '{config.name}'",
                    help="use PoolingType.SUM with weights divided as you mean it",
                )
        super().__init__(tables, device, optimiser, options)

    def _plain_table(self, config: TableConfig) -> nn.EmbeddingBag:
        assert isinstance(config, EmbeddingBagConfig)
        return nn.EmbeddingBag(
            config.num_embeddings, config.embedding_dim, mode=config.pooling.value.lower(),
            include_last_offset=True, device=self._device, dtype=torch_dtype(config.data_type),
        )  # fmt: skip

    def weighted(self) -> bool:
        """Whether values have weights."""
        return self._is_weighted

    def pools(self, name: str) -> bool:
        """Sums and means of rows without weights, which may have gradients of their own."""
        config = self.configs[name]
        assert isinstance(config, EmbeddingBagConfig)
        return not self._is_weighted and config.pooling in (PoolingType.SUM, PoolingType.MEAN)

    def weigh(self, weighted: bool) -> None:
        """Whether the values of the next batches have weights."""
        self._is_weighted = weighted

    def is_weighted(self) -> bool:
        """TorchRec's name of `weighted`."""
        return self._is_weighted

    def embedding_bag_configs(self) -> list[EmbeddingBagConfig]:
        """The tables' configurations."""
        return self._embedding_bag_configs

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Pool the rows of each feature's bags, in the order of tables and their features."""
        found = self.table_rows(features)
        blocks: list[Tensor] = []
        names: list[str] = []
        for number, config in enumerate(self._embedding_bag_configs):
            if config.name in found:
                pooled = self._pool_found(config, *found[config.name])
            else:
                pooled = self._pool_plain(config, features)
            blocks += self._by_feature(config, pooled, features)
            names += self.names[number]
        lengths = [block.shape[1] for block in blocks]
        return KeyedTensor(names, lengths, blocks[0] if len(blocks) == 1 else torch.cat(blocks, 1))

    def _by_feature(
        self, config: EmbeddingBagConfig, pooled: Tensor, batch: KeyedJaggedTensor
    ) -> list[Tensor]:
        """A block [B, D] for each feature of a table."""
        wanted = config.features()
        if not batch.variable_stride_per_key() and batch.inverse_indices_or_none() is None:
            if len(wanted) == 1:
                return [pooled]
            return list(pooled.view(len(wanted), -1, config.embedding_dim).unbind(0))
        places, strides = batch.index_per_key(), batch.stride_per_key()
        blocks = []
        for key, block in zip(
            wanted, torch.split(pooled, [strides[places[key]] for key in wanted]), strict=True
        ):
            inverse = batch.inverse_of(key)
            if inverse is None and len(block) != batch.stride():
                raise JoyError(
                    f"'{key}' has {len(block)} samples, and the batch {batch.stride()}",
                    help="inverse_indices= say which of them each row is",
                )
            blocks.append(
                block if inverse is None else block.index_select(0, inverse.to(block.device))
            )
        return blocks

    def _pool_found(
        self, config: EmbeddingBagConfig, routed: TableRoute | Lines, rows: Tensor
    ) -> Tensor:
        if isinstance(routed, Lines) or not routed.pooled:
            return self._pool(config, rows, routed.inverse, routed.offsets, routed.weights)
        if config.pooling is PoolingType.SUM:
            return rows
        lengths = routed.lengths.clamp(min=1).to(self._device, rows.dtype, non_blocking=True)
        return rows / lengths[:, None]

    def _pool_plain(self, config: EmbeddingBagConfig, batch: KeyedJaggedTensor) -> Tensor:
        part = select(batch, config.features())
        weights = part.weights() if self._is_weighted else None
        weight = self.plain_weight(config.name)
        check_static(part.values(), config)
        return self._pool(config, weight, part.values().long(), part.offsets().long(), weights)

    def _pool(
        self, config: EmbeddingBagConfig, rows: Tensor, indices: Tensor, offsets: Tensor,
        weights: Tensor | None,
    ) -> Tensor:  # fmt: skip
        mode = config.pooling.value.lower()
        if weights is not None:
            weights = weights.to(rows.dtype)
        pooled: Tensor = kernels.op("embedding_bag")(rows, indices, offsets, weights, mode=mode)
        return pooled.float()


class EmbeddingCollection(TableCollection):
    """Rows of every value: `KeyedJaggedTensor` -> {feature: `JaggedTensor` [T, D]}.

    The first arguments are TorchRec's; `use_gather_select` chooses nothing here.
    """

    MODULES = "embeddings"

    def __init__(
        self,
        tables: list[EmbeddingConfig],
        device: torch.device | str | None = None,
        need_indices: bool = False,
        use_gather_select: bool = False,
        use_gather_select_per_sharding: dict[str, bool] | None = None,
        *,
        optimiser: RowOptimiser | None = None,
        options: Options = None,
    ) -> None:
        sizes = {config.embedding_dim for config in tables}
        if len(sizes) > 1:
            raise JoyError(
                f"tables of one EmbeddingCollection have one embedding_dim, not {sorted(sizes)}",
                help="make a collection for each embedding_dim",
            )
        self._embedding_configs, self._need_indices = tables, need_indices
        super().__init__(tables, device, optimiser, options)

    def _plain_table(self, config: TableConfig) -> nn.Embedding:
        return nn.Embedding(
            config.num_embeddings, config.embedding_dim, device=self._device,
            dtype=torch_dtype(config.data_type),
        )  # fmt: skip

    def need_indices(self) -> bool:
        """Whether results carry their ids as weights."""
        return self._need_indices

    def embedding_dim(self) -> int:
        """The tables' one embedding_dim, -1 without tables."""
        return self._embedding_configs[0].embedding_dim if self._embedding_configs else -1

    def embedding_configs(self) -> list[EmbeddingConfig]:
        """The tables' configurations."""
        return self._embedding_configs

    def embedding_names_by_table(self) -> list[list[str]]:
        """Names of results, by table."""
        return self.names

    def forward(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """The row of every value."""
        found = self.table_rows(features)
        results: dict[str, JaggedTensor] = {}
        for number, config in enumerate(self._embedding_configs):
            part = select(features, config.features())
            if config.name in found:
                routed, rows = found[config.name]
                indices = routed.inverse
            else:
                check_static(part.values(), config)
                rows, indices = self.plain_weight(config.name), part.values().long()
            values = kernels.op("unique_lookup")(rows, indices).float()
            edges = part.offset_per_key()
            for place, name in enumerate(self.names[number]):
                jagged = part[config.features()[place]]
                results[name] = JaggedTensor(
                    values[edges[place] : edges[place + 1]],
                    jagged.values() if self._need_indices else None,
                    jagged.lengths(),
                    jagged.offsets(),
                )
        return results
