"""What is added to attention's scores, and what they become: descriptions beside `mask.py`.

    Bias(position=table)          table[h, R - 1 + j - i] for query i and key j, j - i clamped
    Bias(time=table, times=t)     table[h, bucket(|t_i - t_j|)]: HSTU's buckets of a logarithm
    Silu(divisor)                 silu(score) / divisor instead of softmax, pair by pair (HSTU)

Tables are [N, …] or [1, …] (one for all heads). `times` are [B, L] with dense sequences and [T]
with packed ones, `query_times` those of the queries where they differ (HSTU asks with the time
of the event that comes next). Sources: Zhai et al., Actions Speak Louder than Words, 2024, eq. 2
and 3; meta-recsys/generative-recommenders, RelativeBucketedTimeAndPositionBasedBias (buckets of
0.301 in the natural logarithm, as there).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError

BUCKET = 0.301


@dataclass(frozen=True, slots=True)
class Silu:
    """silu(score) / divisor for every visible pair, without a sum over keys."""

    divisor: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Bias:
    """Relative bias by position, by time bucket, or both; gradients reach the tables."""

    position: Tensor | None = None  # [N or 1, 2R - 1]
    time: Tensor | None = None  # [N or 1, buckets]
    times: Tensor | None = None
    query_times: Tensor | None = None
    width: float = BUCKET

    def __post_init__(self) -> None:
        if (self.time is None) != (self.times is None):
            raise JoyError(
                "a bias by time needs both its table and the times of the keys",
                help="Bias(time=table, times=seconds)",
            )
        if self.position is not None and self.position.shape[-1] % 2 == 0:
            raise JoyError(
                f"a position table has 2R - 1 columns, got {self.position.shape[-1]}",
                help="one for every distance from -(R - 1) to R - 1",
            )

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """What is learned."""
        return tuple(table for table in (self.position, self.time) if table is not None)

    def having(self, tables: tuple[Tensor, ...]) -> Bias:
        """The same with other tables, in the order of `tables`."""
        rest = list(tables)
        position = rest.pop(0) if self.position is not None else None
        return replace(self, position=position, time=rest.pop(0) if rest else None)

    def placed(self, place: Callable[[Tensor], Tensor]) -> Bias:
        """The same with its tensors elsewhere; times keep their type."""
        made: dict[str, Any] = {
            name: None if tensor is None else place(tensor)
            for name, tensor in (("position", self.position), ("time", self.time))
        }
        times: dict[str, Any] = {
            name: None if tensor is None else tensor.to(device_of(made, tensor))
            for name, tensor in (("times", self.times), ("query_times", self.query_times))
        }
        return replace(self, **made, **times)

    def part(self, start: int, stop: int) -> Bias:
        """The bias of one packed sequence."""
        return replace(
            self,
            times=None if self.times is None else self.times[None, start:stop],
            query_times=None if self.query_times is None else self.query_times[None, start:stop],
        )

    def tile(self, rows: Tensor, columns: Tensor, shift: int) -> Tensor:
        """[B or 1, N or 1, rows, columns] for the positions of queries and keys; queries of a
        cache begin at position `shift`."""
        total: Tensor | None = None
        if self.position is not None:
            reach = self.position.shape[-1] // 2
            distance = (columns[None, :] - rows[:, None]).clamp(-reach, reach) + reach
            total = self.position[:, distance][None]
        if self.time is not None and self.times is not None:
            asks = self.times[:, shift:] if self.query_times is None else self.query_times
            gap = asks[:, rows - shift][:, :, None] - self.times[:, columns][:, None, :]
            by_time = self.time[:, self.bucket(gap)].transpose(0, 1)
            total = by_time if total is None else total + by_time
        assert total is not None
        return total

    def bucket(self, gap: Tensor) -> Tensor:
        """The bucket of a difference of times: the whole part of ln(max(1, |gap|)) / width.

        In float32, as in the published code: at the edge of a bucket another type may choose the
        next one.
        """
        assert self.time is not None
        place = (gap.abs().clamp(min=1).float().log() / self.width).long()
        return place.clamp(max=self.time.shape[-1] - 1)


def device_of(tables: dict[str, Any], default: Tensor) -> torch.device:
    """Where the tables went."""
    return next((t.device for t in tables.values() if t is not None), default.device)
