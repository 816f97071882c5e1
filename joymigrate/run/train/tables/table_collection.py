"""What both kinds of collections of embedding tables share: the tables, their rows, their state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.train.tables.collection_parts import (
    Options,
    PlainTables,
    embedding_names,
    first_weight,
    options_by_table,
)
from joymigrate.run.train.tables.configs import (
    TableConfig,
    TableOptions,
    torch_dtype,
)
from joymigrate.run.train.tables.exchange import Fetched, LocalExchange, rows_with_grad
from joymigrate.run.train.tables.keyed_jagged import KeyedJaggedTensor
from joymigrate.run.train.tables.remote_rows import ShardedExchange
from joymigrate.run.train.tables.route import Lines, TableRoute, route, route_lines
from joymigrate.run.train.tables.row_optimiser import RowOptimiser
from joymigrate.run.train.tables.rows_state import load_rows, save_rows
from joymigrate.run.train.tables.table import Table
from joymigrate.run.train.tables.table_shape import TableShape


class TableCollection(nn.Module):
    """What both collections share: configurations, tables, and the way of a batch through them."""

    MODULES = ""  # the name of the dictionary of plain tables, as in TorchRec
    exchange_: LocalExchange | ShardedExchange | None = None

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
    def exchange(self) -> LocalExchange | ShardedExchange:
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

    def routes(self, batch: KeyedJaggedTensor) -> list[TableRoute]:
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

    def table_rows(self, batch: KeyedJaggedTensor) -> dict[str, tuple[TableRoute | Lines, Tensor]]:
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
    ) -> dict[str, tuple[TableRoute | Lines, Tensor]] | None:
        """Whole matrices with the lines of every value, where all rows are on the device."""
        if not isinstance(self.exchange, LocalExchange):
            return None
        found: dict[str, tuple[TableRoute | Lines, Tensor]] = {}
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
