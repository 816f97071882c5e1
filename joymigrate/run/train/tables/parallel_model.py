"""A model over several processes: its tables in parts, its dense part as copies (DDP)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.train.tables.failures import Failures
from joymigrate.run.train.tables.optimisers import (
    collections_of,
    fuse_marked,
    fused_optimizer,
)
from joymigrate.run.train.tables.planner import ShardingPlan, TableNeed, make_plan
from joymigrate.run.train.tables.remote_rows import ShardedExchange
from joymigrate.run.train.tables.sharded_parts import TableGroups, owner_among
from joymigrate.run.train.tables.stores import RowFormat
from joymigrate.run.train.tables.table_collection import TableCollection
from joymigrate.run.train.tables.table_shape import TableShape
from joymigrate.run.train.tables.wire import Wire, sharder_of


def shard_tables(
    model: nn.Module,
    *,
    memory_bytes: int | None = None,
    access: Mapping[str, float] | None = None,
    fixed: Mapping[str, str] | None = None,
    sharders: Iterable[Any] | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> list[ShardingPlan]:
    """Cut the fused tables of every collection over all processes; a plan for each collection.

    `access`: distinct ids a step by table, where they were measured. `fixed`: the way of tables by
    name (`table`, `row`, `column`). Called by all ranks before the first batch.
    """
    plans = []
    groups: TableGroups | None = None
    known = {name for collection in collections_of(model) for name in collection.configs}
    for name in {**(fixed or {}), **(access or {})}:
        if name not in known:
            raise JoyError(
                f"there is no table '{name}'.{did_you_mean(name, known)}",
                help=f"the tables are {', '.join(sorted(known))}",
            )
    fuse_marked(model)
    for collection in collections_of(model):
        sharder = sharder_of(collection, sharders)
        if sharder.optimiser is not None:
            for name in list(collection.plain):
                collection.fuse(name, sharder.optimiser)
        if collection.plain:
            raise JoyError(
                "a table without a row-wise optimiser can't be cut over processes",
                where=f"table '{next(iter(collection.plain))}'",
                help="give optimiser=, or call apply_optimizer_in_backward before",
            )
        if collection.exchange_ is not None:
            raise JoyError(
                "the tables have been used already", help="shard them before the first batch"
            )
        plan = make_plan(needs_of(collection, access), dist.get_world_size(), memory_bytes, {
            name: kind for name, kind in (fixed or {}).items() if name in collection.configs
        })  # fmt: skip
        groups = groups or TableGroups.open(collection.device)
        Failures.watch()
        open_parts(collection, plan, groups, sharder.wire)
        plans.append(plan)
        if groups.rank == 0:
            tell(str(plan))
    return plans


def lay_out_tables(
    model: nn.Module,
    device: torch.device,
    processes: int,
    replicas: int,
    tell: Callable[[str], None] = lambda line: None,
) -> None:
    """Bring fused tables to a device and cut them over the processes of a job.

    `replicas`: processes that see other samples than the others, whether they hold the dense part
    whole (`layout: dp`) or a share of it (`fsdp`). Raises `JoyError` where that is not all of them.
    """
    fused = [collection for collection in collections_of(model) if collection.fused()]
    for collection in fused:
        collection.place(device)
    if not fused or processes == 1:
        return
    if replicas != processes:
        raise JoyError(
            "tables with an optimiser of their own are cut over data-parallel processes",
            where="layout",
            help="layout: {dp: N}, or tables: {optimiser: none}",
        )
    shard_tables(model, tell=tell)


def needs_of(collection: TableCollection, access: Mapping[str, float] | None) -> list[TableNeed]:
    """What the planner wants to know."""
    needs = []
    for name in collection.fused():
        shape, optimiser = collection.shape_of(name), collection.optimisers[name]
        form = RowFormat(shape.columns, optimiser.state_width(shape.columns), shape.dtype)
        options = collection.options[name]
        needs.append(
            TableNeed(
                name, shape.rows, shape.columns, form.row_bytes, options.dynamic, optimiser.kind,
                options.cache_rows is not None, (access or {}).get(name, 1.0),
            )
        )  # fmt: skip
    return needs


def open_parts(
    collection: TableCollection, plan: ShardingPlan, groups: TableGroups, wire: Wire | None = None
) -> None:
    """Make this process's parts, and the way to the others'."""
    parts = [part for item in plan.placements for part in item.parts]
    own = {}
    for number, part in enumerate(parts):
        if part.rank != groups.rank:
            continue
        whole = collection.shape_of(part.table)
        shape = TableShape(
            part.table, part.columns, part.rows, part.first_row, part.first_column,
            whole.low, whole.high, whole.dtype,
        )  # fmt: skip
        own[number] = collection.make_table(shape)
        collection.fill(own[number], part.table)
        ways = [n for n, other in enumerate(parts) if other.table == part.table]
        by_row = len({parts[n].first_column for n in ways}) == 1 and len(ways) > 1
        if by_row and collection.options[part.table].dynamic:
            own[number].owner = choose_part(ways.index(number), len(ways))
    names = collection.fused()
    collection.exchange_ = ShardedExchange(
        names,
        {name: collection.configs[name].embedding_dim for name in names},
        parts,
        own,
        groups,
        collection.device,
        {
            name: None
            if collection.options[name].dynamic
            else collection.configs[name].num_embeddings
            for name in names
        },
        wire,
    )


def choose_part(number: int, parts: int) -> Callable[[Any], Any]:
    """Which ids belong to one part of a dynamic table."""
    return lambda ids: owner_among(ids, parts) == number


def bring_to(module: nn.Module, device: torch.device) -> None:
    """The dense part on its device; what was built on `meta` gets its first values there."""
    for part in module.modules():
        if any(item.is_meta for item in part.parameters(recurse=False)):
            part.to_empty(device=device, recurse=False)
            if not hasattr(part, "reset_parameters"):
                raise JoyError(
                    f"{type(part).__name__} was built on meta and has no reset_parameters",
                    help="build it on the device",
                )
            part.reset_parameters()  # type: ignore[operator]
    module.to(device)


class DistributedModelParallel(nn.Module):
    """TorchRec's wrapper: tables in parts, and DDP around the dense parameters.

    `plan` names the way of tables (`{"t1": "row"}`); `sharders` may bring an optimiser of rows
    (`fused_params`) and the formats in which rows are sent; `env` is TorchRec's and has nothing to
    say here. A model built on `meta` is made on `device`. The plans that were made are `.plans`.
    """

    def __init__(
        self,
        module: nn.Module,
        env: Any = None,
        device: torch.device | None = None,
        plan: Mapping[str, str] | None = None,
        sharders: Any = None,
        init_data_parallel: bool = True,
        *,
        memory_bytes: int | None = None,
        access: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        if device is not None:
            for collection in collections_of(module):
                collection.place(device)
        self.plans = shard_tables(
            module, memory_bytes=memory_bytes, access=access, fixed=plan, sharders=sharders
        )
        self.fused_optimizer = fused_optimizer(module)
        if device is not None:
            bring_to(module, device)
        self.module: nn.Module = module
        if init_data_parallel and any(p.requires_grad for p in module.parameters()):
            from torch.nn.parallel import DistributedDataParallel

            self.module = DistributedDataParallel(module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own; what fails in it is told to the other processes."""
        try:
            return self.module(*args, **kwargs)
        except Exception as error:
            cause = Failures.watch().explained(error)
            if cause is error:
                raise
            raise cause from error
