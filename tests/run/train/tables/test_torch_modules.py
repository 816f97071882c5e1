"""Models of torch's own embeddings on tables: the same numbers."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pandas")
from torch import nn  # noqa: E402

from joymigrate.errors import JoyError  # noqa: E402
from joymigrate.run.train.tables import RowOptimiser, TableOptions, put_on_tables  # noqa: E402

RATE = 0.1


class Clicks(nn.Module):
    """Both kinds of embeddings, with all that torch's calls may carry."""

    def __init__(self, mode: str, padding: int | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.word = nn.Embedding(30, 4, padding_idx=padding)
        self.bag = nn.EmbeddingBag(20, 6, mode=mode, padding_idx=padding)
        self.wide = nn.EmbeddingBag(20, 3, mode="mean", include_last_offset=True)
        self.top = nn.Linear(4 + 6 + 3, 1)

    def forward(self, batch):
        words, ids, offsets, weights = batch
        rest = self.bag(ids, offsets, weights)
        edges = torch.cat([offsets, offsets.new_tensor([len(ids)])])
        mixed = [self.word(words).mean(1), rest, self.wide(ids, edges)]
        return self.top(torch.cat(mixed, 1)).square().mean()


def batches(weighted: bool):
    draw = torch.Generator().manual_seed(1)
    for _ in range(6):
        lengths = torch.randint(0, 5, (8,), generator=draw)
        ids = torch.randint(0, 20, (int(lengths.sum()),), generator=draw)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)[:-1]])
        weights = torch.rand(len(ids), generator=draw) if weighted else None
        yield torch.randint(0, 30, (8, 3), generator=draw), ids, offsets, weights


@pytest.mark.parametrize(
    ("mode", "padding", "weighted", "options"),
    [
        ("sum", None, False, None),
        ("sum", 3, True, None),
        ("mean", 3, False, TableOptions(cache_rows=30)),
        ("sum", None, True, TableOptions(cache_rows=30)),
    ],
)
def test_losses_and_rows_are_those_of_torch(mode, padding, weighted, options) -> None:
    plain = Clicks(mode, padding)
    moved = copy.deepcopy(plain)
    assert put_on_tables(moved, RowOptimiser("sgd", RATE), options) == ["word", "bag", "wide"]
    assert [name for name, _ in moved.named_parameters()] == ["top.weight", "top.bias"]
    found = []
    for model in (plain, moved):
        sgd, losses = torch.optim.SGD(model.parameters(), lr=RATE), []
        for batch in batches(weighted):
            sgd.zero_grad()
            loss = model(batch)
            loss.backward()
            sgd.step()
            losses.append(loss.detach())
        found.append(torch.stack(losses))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-7)
    rows = moved.bag.tables.state_dict()["embedding_bags.bag.weight"]
    torch.testing.assert_close(rows, plain.bag.weight.detach(), rtol=1e-5, atol=1e-7)


def test_weights_of_values_get_gradients() -> None:
    bag = nn.Sequential(nn.EmbeddingBag(5, 2, mode="sum"))
    ids, weights = torch.tensor([[1, 2], [2, 4]]), torch.ones(2, 2, requires_grad=True)
    bag[0](ids, per_sample_weights=weights).sum().backward()
    wanted = weights.grad
    weights.grad = None
    put_on_tables(bag, RowOptimiser("sgd", 0.0))
    bag[0](ids, per_sample_weights=weights).sum().backward()
    torch.testing.assert_close(weights.grad, wanted)


def test_what_a_table_cannot_do_is_said_before_anything_changes() -> None:
    tied = nn.ModuleDict({"a": nn.Embedding(4, 2), "out": nn.Linear(2, 4, bias=False)})
    tied["out"].weight = tied["a"].weight
    for model, words in (
        (tied, "its weight is 'out.weight' too"),
        (nn.Sequential(nn.Embedding(4, 2, max_norm=1.0)), "max_norm"),
        (nn.Sequential(nn.Embedding(4, 2), nn.EmbeddingBag(4, 2, mode="max")), "maxima"),
        (nn.Sequential(nn.Embedding.from_pretrained(torch.ones(4, 2))), "frozen"),
        (nn.Linear(2, 2), "no nn.Embedding"),
    ):
        with pytest.raises(JoyError, match=words):
            put_on_tables(model, RowOptimiser("sgd", 0.1))
        assert not any("Table" in type(part).__name__ for part in model.modules())
    shared = nn.Embedding(4, 2)
    both = nn.ModuleDict({"a": shared, "b": shared})
    put_on_tables(both, RowOptimiser("sgd", 0.1))
    assert both["a"] is both["b"]
