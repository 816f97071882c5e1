"""Keys with numbers of samples of their own: what repeats is sent once, results are the same."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pandas")
from joymigrate.errors import JoyError  # noqa: E402
from joymigrate.run.train.tables import (  # noqa: E402
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    PoolingType,
    RowOptimiser,
    TableOptions,
)

KEYS = ["user", "item", "seen"]
# Samples of each key, and which of them each of 4 rows is.
SAMPLES = {"user": [[1, 2]], "item": [[3], [], [5, 5, 6]], "seen": [[3, 4], [7]]}
ROWS = torch.tensor([[0, 0, 0, 0], [2, 0, 1, 2], [1, 1, 0, 1]])


def batches() -> tuple[KeyedJaggedTensor, KeyedJaggedTensor]:
    """The same rows with every key written out, and with each sample once."""
    whole = [SAMPLES[key][at] for key, row in zip(KEYS, ROWS.tolist(), strict=True) for at in row]
    once = [bag for key in KEYS for bag in SAMPLES[key]]

    def made(bags, **more):
        ids = torch.tensor([one for bag in bags for one in bag])
        return KeyedJaggedTensor.from_lengths_sync(
            KEYS, ids, torch.tensor([len(bag) for bag in bags]), **more
        )

    strides = [[len(SAMPLES[key])] for key in KEYS]
    return made(whole), made(once, stride_per_key_per_rank=strides, inverse_indices=(KEYS, ROWS))


@pytest.mark.parametrize("pooling", [PoolingType.SUM, PoolingType.MEAN])
@pytest.mark.parametrize(
    "kept", [None, TableOptions(), TableOptions(cache_rows=20)], ids=["plain", "fused", "cache"]
)
def test_rows_and_what_they_learn_are_those_of_the_whole_batch(pooling, kept) -> None:
    found = []
    for batch in batches():
        tables = [
            EmbeddingBagConfig(10, 4, "u", feature_names=["user"], pooling=pooling),
            EmbeddingBagConfig(10, 4, "i", feature_names=["seen", "item"], pooling=pooling),
        ]
        more = {} if kept is None else {"optimiser": RowOptimiser("sgd", 0.1), "options": kept}
        bags = EmbeddingBagCollection(tables, **more)
        optimiser = torch.optim.SGD(bags.parameters(), lr=0.1) if kept is None else None
        losses = []
        for _ in range(3):
            pooled = bags(batch)
            assert pooled.keys() == ["user", "seen", "item"]
            loss = (pooled.values() - torch.arange(12.0)).square().sum()
            loss.backward()
            if optimiser is not None:
                optimiser.step()
                optimiser.zero_grad()
            losses.append(loss.detach())
        found.append(torch.stack(losses))
    torch.testing.assert_close(*found)


def test_parts_moves_and_rows_of_every_value() -> None:
    _, once = batches()
    assert once.stride() == 4
    assert once.stride_per_key() == [1, 3, 2]
    assert once.variable_stride_per_key()
    assert once["item"].lengths().tolist() == [1, 0, 3]
    assert once["seen"].values().tolist() == [3, 4, 7]
    turned = once.permute([2, 0]).to(torch.device("cpu"))
    assert turned.stride_per_key() == [2, 1]
    assert turned["user"].values().tolist() == [1, 2]
    first, last = once.split([1, 2])
    both = [first["user"].values(), last["seen"].values()]
    assert [one.tolist() for one in both] == [[1, 2], [3, 4, 7]]
    rows = EmbeddingCollection([EmbeddingConfig(10, 4, "i", feature_names=["item"])])
    assert rows(once)["item"].values().shape == (4, 4)


def test_a_batch_may_have_no_keys() -> None:
    none = torch.tensor([], dtype=torch.long)
    for strides in ([], torch.zeros(0, 2)):
        batch = KeyedJaggedTensor([], none, lengths=none, stride_per_key_per_rank=strides)
        assert (batch.stride(), batch.stride_per_key()) == (0, [])


def test_what_does_not_fit_is_named() -> None:
    ids, lengths = torch.tensor([1, 2]), torch.tensor([1, 1])
    with pytest.raises(JoyError, match="2 lengths do not fit"):
        KeyedJaggedTensor(["a", "b"], ids, lengths=lengths, stride_per_key_per_rank=[[1], [2]])
    with pytest.raises(JoyError, match="inverse_indices"):
        KeyedJaggedTensor(["a", "b"], ids, lengths=lengths, stride_per_key_per_rank=[[1], [1]],
                          inverse_indices=(["a"], torch.zeros(1, 3, dtype=torch.long)))  # fmt: skip
    uneven = KeyedJaggedTensor(
        ["a", "b"], ids, lengths=torch.tensor([1, 1, 0]), stride_per_key_per_rank=[[1], [2]]
    )
    tables = [EmbeddingBagConfig(10, 4, key) for key in ("a", "b")]
    with pytest.raises(JoyError, match="'a' has 1 samples, and the batch 2"):
        EmbeddingBagCollection(tables)(uneven)
