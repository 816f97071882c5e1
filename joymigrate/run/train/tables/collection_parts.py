"""What collections of tables read from configurations: options, names of results, first values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.train.formats.first_rows import UniformRows
from joymigrate.run.train.tables.configs import TableConfig, TableOptions

Options = TableOptions | Mapping[str, TableOptions] | None


class PlainTables(nn.ModuleDict):
    """Modules by the names of tables, which may have dots (torch's own can't)."""

    def __getitem__(self, key: str) -> nn.Module:
        return super().__getitem__(escape_name(key))

    def __setitem__(self, key: str, module: nn.Module) -> None:
        super().__setitem__(escape_name(key), module)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(escape_name(key))

    def __contains__(self, key: object) -> bool:
        return super().__contains__(escape_name(str(key)))

    def __iter__(self) -> Iterator[str]:
        return (key.replace(DOT, ".") for key in super().__iter__())


DOT = "%2E"


def escape_name(name: str) -> str:
    """A table's name as torch takes it."""
    return name.replace(".", DOT)


def check_static(ids: Tensor, config: TableConfig) -> None:
    """Refuse ids outside of a plain table, where they can be seen without waiting for a device."""
    if ids.device.type != "cpu" or not ids.numel():
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= config.num_embeddings:
        raise JoyError(
            f"id {low if low < 0 else high} is outside of [0, {config.num_embeddings})",
            where=f"table '{config.name}'",
            help="raise num_embeddings, hash the ids, or make the table dynamic",
        )


def first_weight(config: TableConfig, seed: int) -> Tensor:
    """The first values of all rows, [num_embeddings, embedding_dim]."""
    import numpy as np

    initial = UniformRows(
        config.name, config.embedding_dim, config.get_weight_init_min(),
        config.get_weight_init_max(), seed,
    )  # fmt: skip
    return torch.from_numpy(initial.rows(np.arange(config.num_embeddings, dtype=np.int64)))


def options_by_table(
    options: Options, configs: Mapping[str, TableConfig]
) -> dict[str, TableOptions]:
    """The options of every table. `use_virtual_table` asks for a dynamic one, as in TorchRec."""
    given = options if isinstance(options, Mapping) else {}
    for name in given:
        if name not in configs:
            raise JoyError(
                f"there is no table '{name}'.{did_you_mean(name, configs)}",
                help=f"the tables are {', '.join(configs)}",
            )
    usual = options if isinstance(options, TableOptions) else TableOptions()
    found = {name: given.get(name, usual) for name in configs}
    for name, config in configs.items():
        if config.use_virtual_table and not found[name].dynamic:
            raise JoyError(
                "use_virtual_table asks for ids without a bound",
                where=f"table '{name}'",
                help="options=TableOptions(dynamic=True)",
            )
    return found


def embedding_names(configs: Sequence[TableConfig]) -> list[list[str]]:
    """TorchRec's names of results: the feature, with `@table` where several tables read it."""
    readers: dict[str, int] = {}
    for config in configs:
        for feature in config.features():
            readers[feature] = readers.get(feature, 0) + 1
    return [
        [f if readers[f] == 1 else f"{f}@{config.name}" for f in config.features()]
        for config in configs
    ]
