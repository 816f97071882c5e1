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

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run import kernels
from joymigrate.run.train.tables.collection_parts import (
    Options,
    PlainTables,
    check_static,
    embedding_names,
    first_weight,
    options_by_table,
)
from joymigrate.run.train.tables.configs import (
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
    TableConfig,
    TableOptions,
    torch_dtype,
)
from joymigrate.run.train.tables.exchange import Fetched, LocalExchange, RowExchange, rows_with_grad
from joymigrate.run.train.tables.jagged import JaggedTensor
from joymigrate.run.train.tables.keyed_jagged import KeyedJaggedTensor
from joymigrate.run.train.tables.keyed_tensor import KeyedTensor
from joymigrate.run.train.tables.route import Lines, Route, route, route_lines, select
from joymigrate.run.train.tables.row_optimiser import RowOptimiser
from joymigrate.run.train.tables.rows_state import load_rows, save_rows
from joymigrate.run.train.tables.table import Table
from joymigrate.run.train.tables.table_shape import TableShape


class TableCollection(nn.Module):
    """What both collections share: configurations, tables, and the way of a batch through them."""

    MODULES = ""  # the name of the dictionary of plain tables, as in TorchRec
    exchange_: RowExchange | None = None

    def __init__(
        self,
        configs: Sequence[TableConfig],
        device: torch.device | str | None,
        optimiser: RowOptimiser | None,
        options: Options,
    ) -> None:
        super().__init__()
        self.configs = {config.name: config for config in configs}
        if len(self.configs) < len(configs):
            names = [config.name for config in configs]
            again = next(name for name in names if names.count(name) > 1)
            raise JoyError(f"two tables are called '{again}'", help="give every table its name")
        self._device = torch.device(device or "cpu")
        self.options = options_by_table(options, self.configs)
        self.optimisers: dict[str, RowOptimiser] = {}
        self.rates: dict[str, dict[str, Any]] = {}  # param groups, where an optimiser shows them
        self.initial: dict[str, Tensor] = {}  # weights that a table starts from
        self.names = embedding_names(configs)
        setattr(self, self.MODULES, PlainTables())
        for config in configs:
            config.feature_names = config.features()
            if optimiser is not None:
                self.optimisers[config.name] = optimiser
            elif self.options[config.name] != TableOptions():
                raise JoyError(
                    "rows that are kept in tiers need a row-wise optimiser",
                    where=f"table '{config.name}'",
                    help='optimiser=RowOptimiser("adagrad", lr=0.05)',
                )
            else:
                self.plain[config.name] = self._plain_table(config)
                owner = self, config.name
                self.plain_weight(config.name).table_owner = owner  # type: ignore[attr-defined]
        self.reset_parameters()

    # -- tables ---------------------------------------------------------------------------------

    @property
    def plain(self) -> nn.ModuleDict:
        """Tables whose weights are parameters."""
        found: nn.ModuleDict = getattr(self, self.MODULES)
        return found

    def plain_weight(self, name: str) -> Tensor:
        """The parameter of a plain table."""
        weight: Tensor = self.plain[name].weight  # type: ignore[assignment]
        return weight

    @property
    def device(self) -> torch.device:
        """Where rows are computed with."""
        return self._device

    def _plain_table(self, config: TableConfig) -> Any:
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """First values of plain tables: `init_fn`, else uniform by id."""
        for name in self.plain:
            config, weight = self.configs[name], self.plain_weight(name)
            if weight.device.type == "meta":
                continue
            with torch.no_grad():
                if config.init_fn is not None:
                    config.init_fn(weight)
                else:
                    weight.copy_(first_weight(config, self.options[name].seed))

    def place(self, device: torch.device | str) -> None:
        """Keep fused tables on a device; before the first batch. `to` moves parameters alone."""
        if self.exchange_ is not None and torch.device(device) != self._device:
            raise JoyError(
                "the tables have been used already", help="choose the device before the first batch"
            )
        self._device = torch.device(device)

    def fuse(self, name: str, optimiser: RowOptimiser) -> None:
        """Make a plain table one that is updated in the backward pass, with its present rows."""
        if self.exchange_ is not None:
            raise JoyError(
                "the tables have been used already",
                where=f"table '{name}'",
                help="give the optimiser before the first batch",
            )
        self.optimisers[name] = optimiser
        if name in self.plain:
            weight = self.plain_weight(name).detach()
            if weight.device.type != "meta":
                self.initial[name] = weight.cpu()
            del self.plain[name]

    @property
    def exchange(self) -> RowExchange:
        """What the rows come from; made with the first batch, or by `shard_tables`."""
        if self.exchange_ is None:
            made = {name: self.make_table(self.shape_of(name)) for name in self.fused()}
            for name, table in made.items():
                self.fill(table, name)
            self.exchange_ = LocalExchange(made)
        return self.exchange_

    def fused(self) -> list[str]:
        """Tables updated in the backward pass, in the order of their configurations."""
        return [name for name in self.configs if name in self.optimisers]

    def shape_of(self, name: str) -> TableShape:
        """The whole of a table."""
        config = self.configs[name]
        return TableShape(
            name, config.embedding_dim, config.num_embeddings,
            low=config.get_weight_init_min(), high=config.get_weight_init_max(),
            dtype=torch_dtype(config.data_type),
        )  # fmt: skip

    def make_table(self, shape: TableShape) -> Table:
        """A table or a part of one."""
        name = shape.name
        table = Table(shape, self.optimisers[name], self.options[name], self._device)
        table.rates = self.rates_of(name)
        return table

    def rates_of(self, name: str) -> dict[str, Any]:
        """What of a table's optimiser a schedule may change: its learning rate."""
        return self.rates.setdefault(name, {"lr": self.optimisers[name].lr})

    def fill(self, table: Table, name: str) -> None:
        """Weights that the table was given before: those of its plain form, or `init_fn`'s."""
        config, shape = self.configs[name], table.shape
        weight = self.initial.get(name)
        if weight is None and config.init_fn is not None:
            if table.dynamic:
                raise JoyError(
                    "init_fn fills a whole weight, and a dynamic table has none",
                    where=f"table '{name}'",
                    help="use weight_init_min and weight_init_max: rows depend on the id alone",
                )
            weight = torch.empty(config.num_embeddings, config.embedding_dim)
            config.init_fn(weight)
        if weight is not None:
            columns = slice(shape.first_column, shape.first_column + shape.columns)
            table.load_weights(weight[:, columns])

    def table(self, name: str) -> Table:
        """A table of this process; an error for plain ones and parts of several processes."""
        parts = self.parts(name)
        if len(parts) != 1 or not isinstance(self.exchange, LocalExchange):
            raise JoyError(
                f"{len(parts)} parts of the table lie in this process, and others elsewhere",
                where=f"table '{name}'",
                help="use .parts(name), or export_tables for all rows",
            )
        return parts[0]

    def parts(self, name: str) -> Sequence[Table]:
        """The parts of a table that lie in this process."""
        found = self.exchange.tables.get(name)
        if found is None:
            known = self.fused()
            raise JoyError(
                f"no table '{name}' is updated in the backward pass.{did_you_mean(name, known)}",
                help="give the collection an optimiser" if not known else f"of: {', '.join(known)}",
            )
        return found

    def local_tables(self) -> list[Table]:
        """Every part of every table in this process."""
        return [table for parts in self.exchange.tables.values() for table in parts]

    # -- a batch --------------------------------------------------------------------------------

    def features_of(self, name: str) -> list[str]:
        """The features that read a table."""
        return self.configs[name].features()

    def weighted(self) -> bool:
        """Whether values have weights."""
        return False

    def pools(self, name: str) -> bool:
        """Whether a table's rows are wanted as sums over bags alone."""
        return False

    def routes(self, batch: KeyedJaggedTensor) -> list[Route]:
        """The ids of every table: the pipeline's third stage."""
        return [
            route(
                batch, self.configs[name].features(), name, self._device, self.weighted(),
                self.pools(name),
            )
            for name in self.fused()
        ]  # fmt: skip

    def prefetch(self, batch: KeyedJaggedTensor) -> Fetched:
        """Route a batch and bring its rows: what `forward` does itself for others."""
        fetched = self.exchange.fetch(self.routes(batch))
        self.exchange.bring(fetched)
        return fetched

    def table_rows(self, batch: KeyedJaggedTensor) -> dict[str, tuple[Route | Lines, Tensor]]:
        """The distinct rows of every fused table, with how values find them; or pooled ones."""
        if not self.optimisers:
            return {}
        if not torch.is_grad_enabled():
            ready = self.ready_rows(batch)
            if ready is not None:
                return ready
            routes = self.routes(batch)
            rows: Sequence[Tensor] = self.exchange.look(routes)
        else:
            prepared = (batch.prepared or {}).pop(id(self), None)
            fetched = self.prefetch(batch) if prepared is None else prepared
            routes, rows = fetched.routes, rows_with_grad(fetched)
        return {
            name: (found, part)
            for name, found, part in zip(self.fused(), routes, rows, strict=True)
        }

    def ready_rows(
        self, batch: KeyedJaggedTensor
    ) -> dict[str, tuple[Route | Lines, Tensor]] | None:
        """Whole matrices with the lines of every value, where all rows are on the device."""
        if not isinstance(self.exchange, LocalExchange):
            return None
        found: dict[str, tuple[Route | Lines, Tensor]] = {}
        for name in self.fused():
            table = self.table(name)
            if table.form.dtype != torch.float32:
                return None
            direct = route_lines(batch, self.features_of(name), table, self.weighted())
            if direct is None:
                return None
            found[name] = direct, table.tier.weights
        return found

    # -- state ----------------------------------------------------------------------------------

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        save_rows(self, destination, f"{prefix}{self.MODULES}.")

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: list[str],
        unexpected: list[str], errors: list[str],
    ) -> None:  # fmt: skip
        for key in load_rows(self, state_dict, f"{prefix}{self.MODULES}.", missing):
            del state_dict[key]  # torch's copy: it would call them unexpected
        super()._load_from_state_dict(
            state_dict, prefix, metadata, strict, missing, unexpected, errors
        )


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
        self, config: EmbeddingBagConfig, routed: Route | Lines, rows: Tensor
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
