"""Makes clicks with the skew of a shop: `joymigrate train generate FOLDER`.

Items are drawn from a Zipf law; users have a hidden taste, so that there is something to learn.
Histories are stored once per user; `denormalised` writes the same rows with the history in each of
them, to compare what that costs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from joymigrate.run.train.samples.batch import Array, JaggedIds
from joymigrate.run.train.samples.histories import HistoryStore, LmdbPieces

TASTES = 8  # hidden groups of users and of items
START = 1_760_000_000  # seconds; the first event
SCHEMA = """\
# The features of the generated clicks. docs/how-to/samples.md explains the keys.
schema: joymigrate.features/1
label: click
group: user_id
time: time
dim: 16
features:
  user_id: {{type: id, rows: {users}}}
  item_id: {{type: id, rows: {items}}}
  brand: {{type: text, rows: 1000}}
  hour: {{type: number, buckets: [6, 12, 18]}}
  price: {{type: number, scale: log1p}}
  brand_x_hour: {{type: cross, of: [brand, hour], rows: 4000}}
  clicked: {{type: sequence, table: item_id, history: item, length: {length}}}
histories: {{store: histories, key: user_id, count: history_count}}
"""
JOB = """\
# joymigrate train job.yaml
schema: joymigrate.job/1
model: {from_config: {model_type: din}}
task: ctr
data: {train: clicks-*.parquet, eval: eval.parquet, schema: features.yaml}
batch: {size: 512}
epochs: 1
optimiser: {name: adamw, lr: 0.003, weight_decay: 0}
guard: {spike: 0}
"""


@dataclass(frozen=True, slots=True)
class Clicks:
    """How many, and how skewed."""

    rows: int = 100_000
    users: int = 5_000
    items: int = 20_000
    zipf: float = 1.05
    history: int = 200  # events of a user before the first row, in the mean
    length: int = 100  # events that a row sees
    row_group: int = 16_384
    files: int = 4
    seed: int = 0


def generate(folder: Path, wish: Clicks, *, denormalised: bool = False) -> dict[str, int]:
    """Write Parquet files, a history store, a schema and a job; the bytes of each part."""
    draw = np.random.default_rng(wish.seed)
    folder.mkdir(parents=True, exist_ok=True)
    shares = zipf_shares(wish.items, wish.zipf)
    users = draw.choice(wish.users, wish.rows, p=zipf_shares(wish.users, 0.8))
    items = draw.choice(wish.items, wish.rows, p=shares)
    taste = tastes(users, items)
    clicks = draw.random(wish.rows) < 1 / (1 + np.exp(2.0 - 3.0 * taste))
    before = draw.poisson(wish.history, wish.users)
    store = HistoryStore(LmdbPieces(folder / "histories", write=True))
    owners = np.repeat(np.arange(wish.users), before)
    old = draw.choice(wish.items, len(owners), p=shares)
    times = START + np.arange(wish.rows)
    # Bounded transactions; users are written in order.
    for part in np.array_split(np.arange(wish.users), max(1, wish.users // 2000)):
        own = (owners >= part[0]) & (owners <= part[-1])
        mine = clicks & (users >= part[0]) & (users <= part[-1])
        events = {
            "item": np.concatenate([old[own], items[mine]]),
        }
        store.append(np.concatenate([owners[own], users[mine]]), events)
    counts = before[users] + clicks_before(users, clicks)
    columns = {
        "user_id": users.astype(np.int64),
        "item_id": items.astype(np.int64),
        "brand": np.array([f"brand {number}" for number in range(997)])[items % 997],
        "hour": (times // 3600 % 24).astype(np.float32),
        "price": np.round(np.exp(items % 1009 / 200.0), 2),
        "time": times,
        "history_count": counts.astype(np.int32),
        "click": clicks.astype(np.int8),
    }
    write(folder, columns, wish)
    if denormalised:
        found = store.before_count(users, counts, wish.length, "item")
        write(folder / "denormalised", columns | {"clicked": found}, wish)
    store.pieces.close()
    sizes = {"users": wish.users, "items": wish.items, "length": wish.length}
    (folder / "features.yaml").write_text(SCHEMA.format(**sizes))
    (folder / "job.yaml").write_text(JOB)
    return sizes_of(folder)


def zipf_shares(count: int, power: float) -> Array:
    """The probabilities of ranks 1 … count, in an order that does not follow the number."""
    shares = 1.0 / np.arange(1, count + 1) ** power
    mixed: Array = np.random.default_rng(1).permutation(shares / shares.sum())
    return mixed


def tastes(users: Array, items: Array) -> Array:
    """How well an item suits a user, from -1 to 1: half the items suit by a hidden group."""
    match = (users * 2654435761 // 64 % TASTES) == (items * 40503 // 16 % TASTES)
    found: Array = np.where(match, 1.0, np.cos(items * 0.37) * 0.5)
    return found


def clicks_before(users: Array, clicks: Array) -> Array:
    """How many earlier rows of the same user were clicked [B]."""
    order = np.argsort(users, kind="stable")
    sums = np.cumsum(clicks[order]) - clicks[order]
    firsts = np.flatnonzero(np.diff(users[order], prepend=-1))
    sizes = np.diff(np.append(firsts, len(users)))
    found = np.empty(len(users), dtype=np.int64)
    found[order] = sums - np.repeat(sums[firsts], sizes)
    return found


def write(folder: Path, columns: dict[str, Any], wish: Clicks) -> None:
    """Parquet files of rows; the last tenth is for evaluation."""
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir(parents=True, exist_ok=True)

    def arrow(values: Any, first: int, last: int) -> Any:
        if isinstance(values, JaggedIds):
            part = values.part(first, last)
            return pa.ListArray.from_arrays(pa.array(part.offsets, pa.int32()), part.values)
        return pa.array(values[first:last])

    ends = np.linspace(0, wish.rows * 9 // 10, wish.files + 1).astype(int).tolist()
    names = [f"clicks-{number:03d}.parquet" for number in range(wish.files)]
    pairs = [*zip(names, itertools.pairwise(ends), strict=True)]
    for name, (first, last) in [*pairs, ("eval.parquet", (ends[-1], wish.rows))]:
        table = pa.table({key: arrow(values, first, last) for key, values in columns.items()})
        parquet.write_table(table, folder / name, row_group_size=wish.row_group, compression="zstd")


def sizes_of(folder: Path) -> dict[str, int]:
    """Bytes of rows, histories and denormalised rows on the disk."""

    def size(pattern: str) -> int:
        return sum(path.stat().st_blocks * 512 for path in folder.glob(pattern))

    found = {"rows": size("*.parquet"), "histories": size("histories/data.mdb")}
    return found | {"denormalised": size("denormalised/*.parquet")}
