"""Batches of random rows, as TorchRec's examples train on: `RandomRecDataset`, `RandomBatch`.

With the same `manual_seed` the numbers are TorchRec's: they are drawn in its order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from joymigrate.errors import JoyError
from joymigrate.run.train.tables.keyed_jagged import KeyedJaggedTensor

# Names of Criteo's columns.
DEFAULT_LABEL_NAME = "label"
DEFAULT_INT_NAMES = [f"int_{number}" for number in range(13)]
DEFAULT_CAT_NAMES = [f"cat_{number}" for number in range(26)]


@dataclass
class RandomBatch:
    """Numbers [B, G], ids, labels [B]."""

    dense_features: Tensor
    sparse_features: KeyedJaggedTensor
    labels: Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> RandomBatch:
        """The same on another device."""
        return RandomBatch(
            self.dense_features.to(device, non_blocking=non_blocking),
            self.sparse_features.to(device, non_blocking=non_blocking),
            self.labels.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> RandomBatch:
        """The same in page-locked memory."""
        return RandomBatch(
            self.dense_features.pin_memory(),
            self.sparse_features.pin_memory(),
            self.labels.pin_memory(),
        )

    def record_stream(self, stream: Any) -> None:
        """Tell the allocator that `stream` uses the tensors."""
        for item in (self.dense_features, self.sparse_features, self.labels):
            item.record_stream(stream)


class RandomRecDataset(IterableDataset[RandomBatch]):
    """`num_batches` batches (None: without end), of which `num_generated_batches` are different.

    `hash_sizes` and `ids_per_features` by key, or `hash_size` (100) and `ids_per_feature` (2) of
    all. A sample has between `min_ids_per_feature` (as many as the most) and that many ids.
    """

    def __init__(
        self,
        keys: list[str],
        batch_size: int,
        hash_size: int | None = None,
        hash_sizes: list[int] | None = None,
        ids_per_feature: int | None = None,
        ids_per_features: list[int] | None = None,
        num_dense: int = 50,
        manual_seed: int | None = None,
        num_batches: int | None = None,
        num_generated_batches: int = 10,
        min_ids_per_feature: int | None = None,
        min_ids_per_features: list[int] | None = None,
    ) -> None:
        super().__init__()
        least = min_ids_per_feature if min_ids_per_feature is not None else ids_per_feature
        self.keys, self.batch_size, self.num_dense = list(keys), batch_size, num_dense
        self.sizes = hash_sizes or [hash_size or 100] * len(keys)
        self.most = ids_per_features or [ids_per_feature or 2] * len(keys)
        self.least = min_ids_per_features or [least or 0] * len(keys)
        for name, given in (("hash_sizes", self.sizes), ("ids_per_features", self.most),
                            ("min_ids_per_features", self.least)):  # fmt: skip
            if len(given) != len(keys):
                raise JoyError(f"{len(given)} {name} for {len(keys)} keys", help="one for each key")
        self.generator = None
        if manual_seed is not None:
            self.generator = torch.Generator().manual_seed(manual_seed)
        self.num_batches = num_batches
        self.made = [self.draw() for _ in range(max(num_generated_batches, 0))]

    def draw(self) -> RandomBatch:
        """A new batch."""
        lengths, values = [], []
        for size, least, most in zip(self.sizes, self.least, self.most, strict=True):
            one = torch.randint(
                least, most + 1, (self.batch_size,), dtype=torch.int32, generator=self.generator
            )
            lengths.append(one)
            values.append(torch.randint(0, size, (int(one.sum()),), generator=self.generator))
        keyed = KeyedJaggedTensor(self.keys, torch.cat(values), lengths=torch.cat(lengths))
        numbers = torch.randn(self.batch_size, self.num_dense, generator=self.generator)
        labels = torch.randint(0, 2, (self.batch_size,), generator=self.generator)
        return RandomBatch(numbers, keyed.sync(), labels)

    def __iter__(self) -> Iterator[RandomBatch]:
        numbers = count()
        every = (self.made[n % len(self.made)] if self.made else self.draw() for n in numbers)
        return islice(every, self.num_batches)

    def __len__(self) -> int:
        if self.num_batches is None:
            raise TypeError("batches without end have no number")
        return self.num_batches
