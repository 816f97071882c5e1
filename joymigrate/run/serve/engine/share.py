"""A process's part of every layer, where several compute a model together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from joymigrate.errors import JoyError


@dataclass(frozen=True, slots=True)
class ProcessShare:
    """This process's part of every layer: number `rank` of `world`."""

    rank: int = 0
    world: int = 1
    group: Any = None  # sums; None: of all processes
    words: Any = None  # batches

    def check(self, heads: int, kv_heads: int, intermediate: int) -> None:
        """Raise `JoyError` when the model cannot be cut into so many equal parts."""
        for name, size in (
            ("query heads", heads),
            ("key heads", kv_heads),
            ("mlp rows", intermediate),
        ):
            if size % self.world:
                raise JoyError(
                    f"{size} {name} cannot be shared by {self.world} processes",
                    help="--tensor-parallel must divide the heads and the mlp of the model",
                )

    def refuse(self, what: str) -> None:
        """Raise `JoyError` for a part that is not cut, when there is more than one process."""
        if self.world > 1:
            raise JoyError(f"tensor parallel does not cut {what}", help="--tensor-parallel 1")

    def part(self, rows: Tensor) -> Tensor:
        """This process's part of rows that go to heads or mlp columns in order."""
        return rows.chunk(self.world)[self.rank]

    def columns(self, inputs: int) -> tuple[int, int] | None:
        """This process's inputs of a layer whose outputs are summed."""
        if self.world == 1:
            return None
        width = inputs // self.world
        return (self.rank * width, (self.rank + 1) * width)

    def sum(self, partial: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world == 1:
            return partial
        import torch.distributed as dist

        dist.all_reduce(partial, group=self.group)
        return partial
