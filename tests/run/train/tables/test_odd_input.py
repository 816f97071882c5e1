"""Legal and illegal oddities of tables: each has the number of plain torch, or one clear error."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import numpy as np
import pytest
import torch

from joymigrate.errors import JoyError
from joymigrate.run.train.tables import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    Eviction,
    JaggedTensor,
    KeyedJaggedTensor,
    RowOptimiser,
    TableOptions,
)
from joymigrate.run.train.tables.parallel_model import shard_tables

IDS = np.arange(10)
EDGES = [2**63 - 1, -(2**63), 0, -1]


def bags(options: TableOptions | None = None, name: str = "t") -> EmbeddingBagCollection:
    config = EmbeddingBagConfig(10, 4, name, feature_names=["f"])
    return EmbeddingBagCollection([config], optimiser=RowOptimiser("sgd", lr=1.0), options=options)


def batch(
    ids: list[int], lengths: list[int], dtype: torch.dtype = torch.int64
) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(["f"], torch.tensor(ids, dtype=dtype), lengths=torch.tensor(lengths))


def step(made: EmbeddingBagCollection, *ids: int) -> None:
    made(batch(list(ids), [len(ids)])).values().sum().backward()


def rows(made: EmbeddingBagCollection) -> torch.Tensor:
    return made.table("t").read(IDS)[0]


def test_keys_of_unlike_numbers_of_samples_are_not_taken_as_one_batch() -> None:
    one = JaggedTensor(torch.tensor([1, 2]), lengths=torch.tensor([2]))
    three = JaggedTensor(torch.tensor([3]), lengths=torch.tensor([1, 0, 0]))
    with pytest.raises(JoyError, match="different numbers of samples"):
        KeyedJaggedTensor.from_jt_dict({"a": one, "b": three})


def test_ids_at_the_edges_of_int64_have_rows_of_their_own() -> None:
    made = bags(TableOptions(dynamic=True))
    step(made, *EDGES)
    assert made.table("t").changed_rows(0)[0].tolist() == sorted(EDGES)


@pytest.mark.parametrize("options", [None, TableOptions(cache_rows=10)])
@pytest.mark.parametrize("bad", [-1, 10, 2**63 - 1, -(2**63)])
def test_ids_outside_are_refused_in_every_pass(options: TableOptions | None, bad: int) -> None:
    made = bags(options)
    step(made, *range(10))
    for learns in (False, True):
        with torch.set_grad_enabled(learns), pytest.raises(JoyError, match="is outside of"):
            made(batch([1, bad], [2]))
    step(made, 1)  # nothing is held


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: bags()(batch([1, 2], [3, -1])), "a length of the batch is -1"),
        (lambda: bags()(batch([2**63 + 5], [1], torch.uint64)), "9223372036854775813 is beyond"),
        (lambda: RowOptimiser("adagrad", eps=-1.0), "epsilon is -1.0"),
        (lambda: RowOptimiser(weight_decay=float("nan")), "weight_decay is nan"),
        (lambda: RowOptimiser(lr=float("inf")), "lr is inf"),
        (Eviction, "gives no row up"),
        (lambda: Eviction(ttl_s=-1.0), "each of its numbers is above 0"),
        (lambda: EmbeddingBagConfig(1, 1, "t", feature_names=["f", "f"]), "'f' stands twice"),
        (lambda: shard_tables(bags(name="user"), fixed={"users": "row"}), "Did you mean 'user'"),
    ],
)
def test_what_makes_no_sense_is_refused(given, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(JoyError, match=f"(?i){said}"):
        given()


def test_a_server_that_is_away_is_told_before_the_first_row_leaves() -> None:
    pytest.importorskip("redis")
    away = TableOptions(cache_rows=2, store="redis://127.0.0.1:1/0", redis_patience_s=0.01)
    with pytest.raises(JoyError, match="rows can't be kept in Redis"):
        step(bags(away), 1)


def test_two_tables_of_one_name_in_one_folder_keep_their_rows(tmp_path: Path) -> None:
    options = TableOptions(cache_rows=2, store=f"file:{tmp_path}")
    first, second, plain = bags(options), bags(options), bags()
    for number in range(8):
        step(first, number)
        step(plain, number)
    for number in range(8):
        step(second, number, number)
    for one in (first, second):
        one.table("t").flush()
    assert torch.equal(rows(first), rows(plain))
    with pytest.raises(JoyError, match="can't be copied or pickled"):
        copy.deepcopy(first)


def test_a_copy_of_tables_in_memory_trains_alone() -> None:
    made = bags(TableOptions(cache_rows=3))
    step(made, 1)
    twin = copy.deepcopy(made)
    kept = io.BytesIO()
    torch.save(made, kept)
    kept.seek(0)
    again = torch.load(kept, weights_only=False)
    before = rows(made).clone()
    step(made, 1)
    assert torch.equal(rows(twin), before)
    assert torch.equal(rows(again), before)
    step(twin, 1)
    assert torch.equal(rows(twin), rows(made))
