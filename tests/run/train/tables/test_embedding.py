"""Collections: TorchRec's calls, numbers against plain torch, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from joymigrate.errors import JoyError
from joymigrate.run.train.tables import (
    AdmissionRule,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    Eviction,
    KeyedJaggedTensor,
    PoolingType,
    RowOptimiser,
    TableOptions,
    apply_optimizer_in_backward,
)

FEATURES = ["f1", "f2", "f3"]


def configs(pooling: PoolingType = PoolingType.SUM) -> list[EmbeddingBagConfig]:
    return [
        EmbeddingBagConfig(20, 4, "t1", feature_names=["f1", "f2"], pooling=pooling),
        EmbeddingBagConfig(10, 3, "t2", feature_names=["f3"], pooling=pooling),
    ]


def batch(seed: int = 0, samples: int = 5, high: int = 10) -> KeyedJaggedTensor:
    """A batch with empty bags and repeated ids."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (3 * samples,), generator=random)
    lengths[0] = 0
    values = torch.randint(0, high, (int(lengths.sum()),), generator=random)
    return KeyedJaggedTensor.from_lengths_sync(FEATURES, values, lengths)


def torch_result(
    kjt: KeyedJaggedTensor, t1: torch.Tensor, t2: torch.Tensor, mode: str
) -> torch.Tensor:
    """What torch's own embedding_bag makes of the same weights."""
    blocks = []
    for key, weight in zip(FEATURES, (t1, t1, t2), strict=True):
        one = kjt[key]
        blocks.append(
            torch.nn.functional.embedding_bag(
                one.values(), weight, one.offsets(), mode=mode, include_last_offset=True
            )
        )
    return torch.cat(blocks, 1)


@pytest.mark.parametrize("pooling", [PoolingType.SUM, PoolingType.MEAN])
@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam"])
def test_a_fused_table_trains_as_torch_does(pooling: PoolingType, kind: str) -> None:
    plain = EmbeddingBagCollection(configs(pooling))
    fused = EmbeddingBagCollection(configs(pooling), optimiser=RowOptimiser(kind, lr=0.1))
    weights = [
        plain.embedding_bags[n].weight.detach().clone().requires_grad_() for n in ("t1", "t2")
    ]
    optimisers = {
        "sgd": torch.optim.SGD,
        "adagrad": torch.optim.Adagrad,
        "adam": torch.optim.SparseAdam,
    }
    sparse = kind == "adam"
    optimiser = optimisers[kind](weights, lr=0.1)
    # SparseAdam adds eps before the square root's correction, which shows where gradients vanish.
    near = {"rtol": 1e-2, "atol": 1e-3} if sparse else {}
    for step in range(5):
        kjt = batch(step)
        got = fused(kjt).values()
        want = torch_result(kjt, *weights, pooling.value.lower())
        torch.testing.assert_close(got, want, **near)
        got.square().sum().backward()
        optimiser.zero_grad()
        want.square().sum().backward()
        if sparse:  # rows that the batch saw, as torch's SparseAdam wants them
            for weight, keys in zip(weights, (FEATURES[:2], FEATURES[2:]), strict=True):
                ids = torch.cat([kjt[key].values() for key in keys]).unique()
                grad = weight.grad[ids]
                weight.grad = torch.sparse_coo_tensor(
                    ids[None], grad, weight.shape, check_invariants=True
                )
        optimiser.step()
    for name, weight in zip(("t1", "t2"), weights, strict=True):
        got = fused.table(name).read(np.arange(len(weight), dtype=np.int64))[0]
        torch.testing.assert_close(got, weight.detach(), **near)


def test_a_plain_table_has_torchrecs_names_and_an_optimiser_of_torch() -> None:
    ebc = EmbeddingBagCollection(tables=configs(), device=torch.device("cpu"))
    assert sorted(ebc.state_dict()) == ["embedding_bags.t1.weight", "embedding_bags.t2.weight"]
    optimiser = torch.optim.Adagrad(ebc.parameters(), lr=0.1)
    result = ebc(batch())
    assert result.keys() == FEATURES
    assert result.offset_per_key() == [0, 4, 8, 11]
    before = ebc.embedding_bags["t1"].weight.detach().clone()
    result.values().sum().backward()
    optimiser.step()
    assert not torch.equal(before, ebc.embedding_bags["t1"].weight)


def test_apply_optimizer_in_backward_keeps_the_rows_and_fuses_the_update() -> None:
    plain, fused = EmbeddingBagCollection(configs()), EmbeddingBagCollection(configs())
    apply_optimizer_in_backward(torch.optim.SGD, fused.parameters(), {"lr": 0.5})
    assert not list(fused.parameters())
    kjt = batch()
    torch.testing.assert_close(fused(kjt).values(), plain(kjt).values())
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.5)
    for ebc in (plain, fused):
        ebc(kjt).values().sin().sum().backward()
    optimiser.step()
    torch.testing.assert_close(fused(kjt).values(), plain(kjt).values())


def test_a_feature_of_two_tables_gets_torchrecs_names() -> None:
    tables = [EmbeddingBagConfig(5, 2, n, feature_names=["f1"]) for n in ("a", "b")]
    assert EmbeddingBagCollection(tables)(batch(high=5)).keys() == ["f1@a", "f1@b"]


def test_rows_of_an_embedding_collection_stand_at_their_values() -> None:
    tables = [EmbeddingConfig(20, 4, "t", feature_names=["f2", "f1"])]
    plain = EmbeddingCollection(tables, need_indices=True)
    fused = EmbeddingCollection(tables, optimiser=RowOptimiser("sgd", lr=1.0))
    kjt = batch()
    weight = plain.embeddings["t"].weight
    for key, jagged in plain(kjt).items():
        torch.testing.assert_close(jagged.values(), weight[kjt[key].values()])
        torch.testing.assert_close(fused(kjt)[key].values(), jagged.values())
        assert torch.equal(jagged.weights(), kjt[key].values())
        assert torch.equal(jagged.lengths(), kjt[key].lengths())


def dynamic(options: TableOptions, kind: str = "sgd") -> EmbeddingBagCollection:
    table = EmbeddingBagConfig(100, 4, "t", feature_names=["f"])
    return EmbeddingBagCollection([table], optimiser=RowOptimiser(kind, lr=0.1), options=options)


def ids_of(*ids: int) -> KeyedJaggedTensor:
    """A batch with one id in each bag."""
    ones = torch.ones(len(ids), dtype=torch.int64)
    return KeyedJaggedTensor(["f"], torch.tensor(ids), lengths=ones)


def train(ebc: EmbeddingBagCollection, *ids: int) -> torch.Tensor:
    result = ebc(ids_of(*ids)).values()
    result.sum().backward()
    return result.detach()


def test_ids_of_a_dynamic_table_have_no_bound() -> None:
    ebc = dynamic(TableOptions(dynamic=True))
    first = train(ebc, 2**62, -7, 2**62)
    assert torch.equal(first[0], first[2])
    assert len(ebc.table("t")) == 2
    # One row was seen twice: the sum of two gradients of one.
    torch.testing.assert_close(train(ebc, 2**62)[0], first[0] - 0.2)


def test_a_row_counts_before_it_is_admitted() -> None:
    ebc = dynamic(TableOptions(dynamic=True, admission=AdmissionRule(count=3)))
    first = train(ebc, 5)
    assert torch.equal(train(ebc, 5), first)  # it learns nothing yet
    assert len(ebc.table("t")) == 0
    train(ebc, 5)
    assert len(ebc.table("t")) == 1
    torch.testing.assert_close(train(ebc, 5), first - 0.1)


def test_an_evicted_row_starts_anew() -> None:
    ebc = dynamic(TableOptions(dynamic=True, eviction=Eviction(max_age=2, every=1)))
    first = train(ebc, 5)
    for other in (1, 2, 3):
        train(ebc, other)
    table = ebc.table("t")
    assert 5 in table.removed_ids(0)
    assert torch.equal(train(ebc, 5), first)
    assert 5 not in table.removed_ids(0)


@pytest.mark.parametrize("store", ["memory", "file", "lmdb"])
@pytest.mark.parametrize("host_rows", [None, 9])
def test_a_cache_over_a_store_changes_no_bit(store: str, host_rows: int | None, tmp_path) -> None:
    where = store if store == "memory" else f"{store}:{tmp_path}"
    options = TableOptions(dynamic=True, cache_rows=8, host_rows=host_rows, store=where)
    small, whole = dynamic(options, "adam"), dynamic(TableOptions(dynamic=True), "adam")
    random = np.random.default_rng(0)
    for _ in range(30):
        ids = random.zipf(1.3, 6).clip(max=60).tolist()
        assert torch.equal(train(small, *ids), train(whole, *ids))
    for one, other in zip(
        small.table("t").row_chunks(), whole.table("t").row_chunks(), strict=True
    ):
        assert np.array_equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
        assert torch.equal(one[2], other[2])
    assert small.table("t").tier.figures.misses > 20
    small.table("t").close()


def test_changed_rows_are_those_since_a_version() -> None:
    ebc = dynamic(TableOptions(dynamic=True))
    train(ebc, 1, 2)
    table = ebc.table("t")
    version = table.advance()
    train(ebc, 2, 3)
    ids, rows = table.changed_rows(version)
    assert ids.tolist() == [2, 3]
    torch.testing.assert_close(rows, table.read(ids)[0])
    assert table.changed_rows(version - 1)[0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("options", [TableOptions(), TableOptions(dynamic=True)])
def test_state_dict_brings_the_rows_back(options: TableOptions) -> None:
    ebc, other = dynamic(options), dynamic(options)
    train(ebc, 1, 2, 7)
    train(other, 50)
    other.load_state_dict(ebc.state_dict())
    kjt = ids_of(1, 2, 7, 50)
    with torch.no_grad():
        torch.testing.assert_close(other(kjt).values(), ebc(kjt).values())


def test_a_pass_without_gradients_learns_nothing() -> None:
    ebc = dynamic(TableOptions(dynamic=True, cache_rows=4))
    with torch.no_grad():
        first = ebc(ids_of(1, 2, 3)).values()
    assert len(ebc.table("t")) == 0
    assert torch.equal(train(ebc, 1, 2, 3), first)


def test_a_forward_pass_that_is_dropped_lets_its_rows_go() -> None:
    ebc = dynamic(TableOptions(dynamic=True, cache_rows=4))
    for first in range(0, 40, 4):
        ebc(ids_of(*range(first, first + 4)))  # no backward
    assert int(ebc.table("t").in_flight.sum()) == 0


BAD = {
    "beyond": (lambda: train(dynamic(TableOptions()), 100), "id 100 is outside of [0, 100)"),
    "negative": (lambda: train(dynamic(TableOptions()), -1), "id -1 is outside of [0, 100)"),
    "plain": (lambda: EmbeddingBagCollection(configs())(batch(high=40)), "is outside of [0, "),
    "no key": (lambda: dynamic(TableOptions())(batch()), "the batch has no key 'f'. Did you"),
    "floats": (
        lambda: dynamic(TableOptions())(
            KeyedJaggedTensor(["f"], torch.tensor([1.5]), lengths=torch.tensor([1]))
        ),
        "ids are whole numbers, not float32",
    ),
    "lengths": (
        lambda: dynamic(TableOptions())(
            KeyedJaggedTensor(["f"], torch.tensor([1]), lengths=torch.tensor([2]))
        ),
        "the lengths of the batch say 2 values, and there are 1",
    ),
    "cache": (
        lambda: train(dynamic(TableOptions(dynamic=True, cache_rows=2)), 1, 2, 3),
        "a batch needs 3 rows that are not in the cache",
    ),
    "optimiser": (lambda: RowOptimiser("adgrad"), "no optimiser 'adgrad'. Did you mean 'adagrad'"),
    "tiers": (
        lambda: EmbeddingBagCollection(configs(), options=TableOptions(cache_rows=5)),
        "need a row-wise optimiser",
    ),
    "static": (
        lambda: TableOptions(admission=AdmissionRule(count=2)), "are for dynamic tables",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_error(name: str) -> None:
    act, text = BAD[name]
    with pytest.raises(JoyError) as caught:
        act()
    assert text in str(caught.value)
    assert caught.value.help


def test_a_refused_batch_counts_nothing() -> None:
    ebc = dynamic(TableOptions())
    with pytest.raises(JoyError):
        train(ebc, 1, 100)
    assert ebc.table("t").batches == 0
    assert int(ebc.table("t").in_flight.sum()) == 0


def test_a_second_backward_is_refused() -> None:
    loss = dynamic(TableOptions())(ids_of(1)).values().sum()
    loss.backward(retain_graph=True)
    with pytest.raises(JoyError, match="were updated already"):
        loss.backward()
