"""Models written with torch's own embeddings, put on tables: rows in tiers, updated in backward.

    names = put_on_tables(model, RowOptimiser("sgd", lr=0.1))      # before the optimiser is made
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)        # of the rest of the model

Every `nn.EmbeddingBag` and `nn.Embedding` of the model (or those that `which` takes) is replaced by
a module with the same calls and the same rows. The model's code stays as it is. Rows are no
parameters any more: schedules and clipping of the program's optimiser do not reach them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from joymigrate.errors import JoyError
from joymigrate.run.train.tables.configs import (
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
    TableOptions,
)
from joymigrate.run.train.tables.embedding import EmbeddingBagCollection, EmbeddingCollection
from joymigrate.run.train.tables.keyed_jagged import KeyedJaggedTensor
from joymigrate.run.train.tables.row_optimiser import RowOptimiser
from joymigrate.run.train.tables.table_collection import TableCollection

KEY = "ids"


def put_on_tables(
    model: nn.Module,
    optimiser: RowOptimiser,
    options: TableOptions | None = None,
    which: Callable[[str, nn.Module], bool] = lambda name, module: True,
) -> list[str]:
    """Replace the model's embeddings in place; the names of the modules that were.

    `which` gets a module's name and itself. An embedding that two names share stays shared. Raises
    `JoyError` for what tables can't do: `max_norm`, `scale_grad_by_freq`, a frozen weight, one
    that another module uses too, and where nothing is left to replace.
    """
    chosen = [
        (name, module)
        for name, module in model.named_modules(remove_duplicate=False)
        if type(module) in (nn.Embedding, nn.EmbeddingBag) and which(name, module)
    ]
    if not chosen:
        raise JoyError(
            "the model has no nn.Embedding or nn.EmbeddingBag to put on tables",
            help="call it before the model is wrapped or compiled, and look at `which`",
        )
    for name, module in chosen:
        check_module(model, name, module)
    made: dict[int, nn.Module] = {}
    for name, module in chosen:
        if id(module) not in made:
            kind = TableEmbedding if isinstance(module, nn.Embedding) else TableEmbeddingBag
            made[id(module)] = kind(name, module, optimiser, options)
        above, _, last = name.rpartition(".")
        setattr(model.get_submodule(above), last, made[id(module)])
    return [name for name, _ in chosen]


def check_module(model: nn.Module, name: str, module: Any) -> None:
    """What a table can't do is an error before anything changes."""
    where = f"module '{name}'"
    if getattr(module, "mode", None) == "max":
        raise JoyError(
            "tables have no bags of maxima", where=where, help="leave the module out with `which`"
        )
    for option in ("max_norm", "scale_grad_by_freq"):
        if getattr(module, option):
            raise JoyError(
                f"tables have no {option}", where=where, help="leave the module out with `which`"
            )
    if not module.weight.requires_grad:
        raise JoyError(
            "its weight is frozen, and a table would train it",
            where=where,
            help="leave the module out with `which`",
        )
    for other, parameter in model.named_parameters(remove_duplicate=False):
        if (
            parameter is module.weight
            and model.get_submodule(other.rpartition(".")[0]) is not module
        ):
            raise JoyError(
                f"its weight is '{other}' too",
                where=where,
                help="leave the module out with `which`: tied weights are no table",
            )


class OneTable(nn.Module):
    """What both replacements share: one table, with the rows of the module before."""

    tables: TableCollection

    def __init__(self, name: str, module: nn.Embedding | nn.EmbeddingBag) -> None:
        super().__init__()
        self.name = name
        self.num_embeddings, self.embedding_dim = module.num_embeddings, module.embedding_dim
        self.padding_idx, self.kept = module.padding_idx, module.weight.dtype

    def start(self, module: nn.Embedding | nn.EmbeddingBag) -> None:
        """The rows as they are."""
        weight = module.weight.detach()
        if weight.device.type != "meta":
            self.tables.initial[self.name] = weight.float().cpu()
            self.tables.place(weight.device)

    def keyed(
        self, ids: Tensor, lengths: Tensor, weights: Tensor | None = None
    ) -> KeyedJaggedTensor:
        """A batch of one key; a table not yet used lies where its first ids are."""
        if self.tables.exchange_ is None:
            self.tables.place(ids.device)
        return KeyedJaggedTensor([KEY], ids, weights, lengths=lengths)

    def extra_repr(self) -> str:
        """As torch shows its own."""
        return f"{self.num_embeddings}, {self.embedding_dim}, table '{self.name}'"


class TableEmbedding(OneTable):
    """`nn.Embedding` on a table: ids of any shape -> [*, D]."""

    def __init__(
        self, name: str, module: nn.Embedding, optimiser: RowOptimiser, options: TableOptions | None
    ) -> None:
        super().__init__(name, module)
        config = EmbeddingConfig(self.num_embeddings, self.embedding_dim, name, feature_names=[KEY])
        self.tables: TableCollection = EmbeddingCollection(
            [config], optimiser=optimiser, options=options
        )
        self.start(module)

    def forward(self, input: Tensor) -> Tensor:
        """The rows; the one of `padding_idx` learns nothing."""
        flat = input.reshape(-1)
        lengths = torch.ones(len(flat), dtype=torch.int64, device=flat.device)
        rows = self.tables(self.keyed(flat, lengths))[KEY].values()
        if self.padding_idx is not None:
            rows = torch.where((flat == self.padding_idx)[:, None], rows.detach(), rows)
        found: Tensor = rows.to(self.kept).view(*input.shape, self.embedding_dim)
        return found


class TableEmbeddingBag(OneTable):
    """`nn.EmbeddingBag` on a table: ids [T] with `offsets` [B], or [B, N] -> [B, D]."""

    def __init__(
        self,
        name: str,
        module: nn.EmbeddingBag,
        optimiser: RowOptimiser,
        options: TableOptions | None,
    ) -> None:
        super().__init__(name, module)
        self.mode, self.include_last_offset = module.mode, module.include_last_offset
        config = EmbeddingBagConfig(
            self.num_embeddings, self.embedding_dim, name, feature_names=[KEY],
            pooling=PoolingType[self.mode.upper()],
        )  # fmt: skip
        self.tables = EmbeddingBagCollection([config], optimiser=optimiser, options=options)
        self.start(module)

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Pooled rows; gradients reach `per_sample_weights` too."""
        ids, lengths = input.reshape(-1), self.lengths(input, offsets)
        weights = None if per_sample_weights is None else per_sample_weights.reshape(-1)
        if self.padding_idx is not None:
            kept = ids != self.padding_idx
            bag = torch.repeat_interleave(lengths)[kept]
            lengths = torch.bincount(bag, minlength=len(lengths))
            ids, weights = ids[kept], None if weights is None else weights[kept]
        if weights is not None and self.mode != "sum":
            raise JoyError(
                f"per_sample_weights go with mode 'sum', not '{self.mode}'",
                where=f"module '{self.name}'",
            )
        assert isinstance(self.tables, EmbeddingBagCollection)
        self.tables.weigh(weights is not None)
        found: Tensor = self.tables(self.keyed(ids, lengths, weights)).values().to(self.kept)
        return found

    def lengths(self, input: Tensor, offsets: Tensor | None) -> Tensor:
        """Values of each bag [B]."""
        if input.dim() == 2:
            rows, columns = input.shape
            return torch.full((rows,), columns, dtype=torch.int64, device=input.device)
        if offsets is None:
            raise JoyError(
                "ids of one axis need offsets",
                where=f"module '{self.name}'",
                help="give where each bag begins, or ids [B, N]",
            )
        edges = offsets.to(torch.int64)
        if not self.include_last_offset:
            edges = torch.cat((edges, edges.new_full((1,), len(input))))
        return edges.diff()
