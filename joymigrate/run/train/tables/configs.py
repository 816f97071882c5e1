"""What a table is: TorchRec's table configurations, and beside them how its rows are kept.

A configuration says names and sizes, as in TorchRec; `TableOptions` says what TorchRec leaves to
its sharders: ids without a bound, admission and eviction, the tiers that hold the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from joymigrate.errors import JoyError

if TYPE_CHECKING:
    import torch


class PoolingType(Enum):
    """How the rows of a bag become one."""

    SUM = "SUM"
    MEAN = "MEAN"
    NONE = "NONE"


class DataType(Enum):
    """Formats of stored rows. Sums and updates are always float32."""

    FP32 = "FP32"
    FP16 = "FP16"
    BF16 = "BF16"


@dataclass
class TableConfig:
    """Fields of both kinds of tables, in TorchRec's order and with its defaults.

    `init_fn` fills a whole weight in place. Without one, rows are uniform between `weight_init_min`
    and `weight_init_max` (default ±sqrt(1 / num_embeddings)) and depend on table and id alone.
    """

    num_embeddings: int
    embedding_dim: int
    name: str = ""
    data_type: DataType = DataType.FP32
    feature_names: list[str] = field(default_factory=list)
    weight_init_max: float | None = None
    weight_init_min: float | None = None
    num_embeddings_post_pruning: int | None = None
    init_fn: Callable[[torch.Tensor], torch.Tensor | None] | None = None
    need_pos: bool = False
    input_dim: int | None = None
    total_num_buckets: int | None = None
    use_virtual_table: bool = False
    virtual_table_eviction_policy: Any = None
    enable_embedding_update: bool = False
    stash_weights: bool = False

    def __post_init__(self) -> None:
        where = f"table '{self.name}'"
        if self.num_embeddings < 1 or self.embedding_dim < 1:
            raise JoyError(
                f"a table of {self.num_embeddings} x {self.embedding_dim} holds nothing",
                where=where,
                help="num_embeddings and embedding_dim are at least 1",
            )
        if getattr(self.data_type, "value", None) not in DataType.__members__:
            raise JoyError(
                f"rows of {self.data_type} can't be trained",
                where=where,
                help=f"one of {', '.join(DataType.__members__)}",
            )
        self.data_type = DataType[self.data_type.value]
        again = [name for name in self.feature_names if self.feature_names.count(name) > 1]
        if again:
            raise JoyError(f"feature '{again[0]}' stands twice", where=where, help="name it once")

    def get_weight_init_max(self) -> float:
        """The largest first value."""
        return self.scale() if self.weight_init_max is None else self.weight_init_max

    def get_weight_init_min(self) -> float:
        """The least first value."""
        return -self.scale() if self.weight_init_min is None else self.weight_init_min

    def scale(self) -> float:
        """TorchRec's default: sqrt(1 / num_embeddings)."""
        return math.sqrt(1 / self.num_embeddings)

    def num_features(self) -> int:
        """How many features read the table."""
        return len(self.feature_names)

    def features(self) -> list[str]:
        """The features that read the table; without names the one called as the table."""
        return self.feature_names or [self.name]


@dataclass
class EmbeddingBagConfig(TableConfig):
    """A table whose rows are pooled for each sample."""

    pooling: PoolingType = PoolingType.SUM


@dataclass
class EmbeddingConfig(TableConfig):
    """A table whose rows are returned one by one."""


@dataclass(frozen=True, slots=True)
class AdmissionRule:
    """When a new id gets a row of its own; until then it reads its first value and learns nothing.

    `count`: at its n-th sighting. `probability`: each sighting admits with this chance, decided by
    a hash of the id and the number of the sighting. `candidates`: ids counted at the most; beyond
    it the half seen least is forgotten.
    """

    count: int = 1
    probability: float = 1.0
    candidates: int = 1_000_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 < self.probability <= 1 or self.candidates < 2:
            raise JoyError(
                f"no id can be admitted with {self}",
                help="count ≥ 1, 0 < probability ≤ 1, candidates ≥ 2",
            )


@dataclass(frozen=True, slots=True)
class Eviction:
    """Which rows of a dynamic table are given up, looked at every `every` batches.

    `max_rows`: beyond it the rows seen least go (ties: the oldest). `min_count`: rows seen less
    often since the last look. `max_age`: rows not seen for so many batches. `ttl_s`: rows not seen
    for so many seconds (then two runs may differ, by the clock).
    """

    max_rows: int | None = None
    min_count: float | None = None
    max_age: int | None = None
    ttl_s: float | None = None
    every: int = 100

    def __post_init__(self) -> None:
        if self.every < 1 or (self.max_rows is not None and self.max_rows < 1):
            raise JoyError(f"{self} can't be done", help="every and max_rows are at least 1")
        rules = (self.max_rows, self.min_count, self.max_age, self.ttl_s)
        if all(rule is None for rule in rules):
            raise JoyError(f"{self} gives no row up",
                           help="give max_rows, min_count, max_age or ttl_s")  # fmt: skip
        for rule in rules:
            if rule is not None and not rule > 0:
                raise JoyError(f"{self} can't be done", help="each of its numbers is above 0")


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How the rows of a table are kept.

    `dynamic`: ids are any int64, and rows come into being when ids are seen; otherwise ids lie in
    [0, num_embeddings). `cache_rows`: rows on the device; None keeps all of them there. `store`:
    where the others are: `memory`, `file:FOLDER` (memory-mapped), `lmdb:FOLDER`,
    `redis://host:port/db`. `host_rows`: rows in host memory before a slower store. `cache_age`:
    batches after which the counts that the cache goes by are halved. `seed` of the first values.
    """

    dynamic: bool = False
    admission: AdmissionRule | None = None
    eviction: Eviction | None = None
    cache_rows: int | None = None
    host_rows: int | None = None
    store: str = "memory"
    cache_age: int = 1000
    seed: int = 0
    redis_patience_s: float = 30.0

    def __post_init__(self) -> None:
        if (self.admission or self.eviction) and not self.dynamic:
            raise JoyError(
                "admission and eviction are for dynamic tables",
                help="set dynamic=True, or leave them out: a static table has a row for every id",
            )
        for name in ("cache_rows", "host_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise JoyError(f"{name} is {value}", help=f"at least 1, or None: {name}=None")
        if self.cache_rows is None and (self.store != "memory" or self.host_rows):
            raise JoyError(
                f"rows in {self.store} need a cache on the device",
                help="give cache_rows: at least the distinct ids of two batches",
            )


def torch_dtype(data_type: DataType) -> torch.dtype:
    """The torch dtype of stored rows."""
    import torch

    return {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}[data_type.value]
