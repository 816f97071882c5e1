"""The pipeline gives the bits of the synchronous run."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from joymigrate.errors import JoyError
from joymigrate.run.train.tables import (
    AdmissionRule,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    Eviction,
    KeyedJaggedTensor,
    RowOptimiser,
    TableOptions,
    TablePipeline,
)

STEPS = 25
HOT = 7  # in every batch


class ClickModel(nn.Module):
    """Pooled rows, one layer, a loss."""

    def __init__(self, options: TableOptions, kind: str = "adam") -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(60, 4, "a", feature_names=["f"]),
            EmbeddingBagConfig(60, 4, "b", feature_names=["g"]),
        ]
        self.ebc = EmbeddingBagCollection(
            tables, optimiser=RowOptimiser(kind, lr=0.05), options=options
        )
        torch.manual_seed(0)
        self.top = nn.Linear(8, 1)

    def forward(
        self, batch: tuple[KeyedJaggedTensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keyed, labels = batch
        loss = (self.top(self.ebc(keyed).values()).squeeze(1) - labels).square().mean()
        return loss, loss.detach()


def batches(
    seed: int = 0, steps: int = STEPS, samples: int = 6
) -> Iterator[tuple[KeyedJaggedTensor, torch.Tensor]]:
    """A hot id in every batch, repeated ids in a bag, empty bags, ids that go and come back."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        lengths = random.integers(0, 4, 2 * samples)
        lengths[0] = 2
        ids = random.zipf(1.2, lengths.sum()).clip(max=59)
        ids[:2] = HOT
        yield (
            KeyedJaggedTensor(["f", "g"], torch.from_numpy(ids), lengths=torch.from_numpy(lengths)),
            torch.from_numpy(random.normal(size=samples).astype(np.float32)),
        )


OPTIONS = {
    "static": TableOptions(),
    "dynamic": TableOptions(dynamic=True),
    "cache": TableOptions(dynamic=True, cache_rows=24),
    "cache for little more than a batch": TableOptions(cache_rows=16),
    "evictions": TableOptions(
        dynamic=True, cache_rows=40, eviction=Eviction(max_rows=9, every=1, max_age=2)
    ),
    "admission": TableOptions(
        dynamic=True, admission=AdmissionRule(count=2), eviction=Eviction(min_count=2, every=3)
    ),
}


def run(options: TableOptions, synchronous: bool, slow_s: float = 0.0):
    model = ClickModel(options)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    pipeline = TablePipeline(model, optimiser, synchronous=synchronous)
    source, losses = batches(), []
    while True:
        try:
            losses.append(pipeline.progress(source))
        except StopIteration:
            break
        time.sleep(slow_s)  # lets the other threads run ahead as far as they can
    tables = [list(model.ebc.table(name).row_chunks()) for name in ("a", "b")]
    return torch.stack(losses), model.top.weight.detach(), tables


@pytest.mark.dear
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("slow_s", [0.0, 0.01])
def test_the_pipeline_gives_the_synchronous_bits(name: str, slow_s: float) -> None:
    losses, top, tables = run(OPTIONS[name], synchronous=False, slow_s=slow_s)
    want_losses, want_top, want_tables = run(OPTIONS[name], synchronous=True)
    assert len(losses) == STEPS
    assert torch.equal(losses, want_losses)
    assert torch.equal(top, want_top)
    for got, want in zip(tables, want_tables, strict=True):
        for one, other in zip(got, want, strict=True):
            assert np.array_equal(one[0], other[0])
            assert torch.equal(one[1], other[1])
            assert torch.equal(one[2], other[2])


def test_rows_really_left_and_came_back() -> None:
    model = ClickModel(OPTIONS["evictions"])
    pipeline, source = TablePipeline(model, None), batches()
    for _ in range(STEPS):
        pipeline.progress(source)
    table = model.ebc.table("a")
    evicted = np.concatenate([ids for _, ids in table.removed])
    assert len(evicted) > len(np.unique(evicted))
    assert len(table) <= 9 + 24
    assert int(table.in_flight.sum()) == 0
    assert len(table.waiting) == 0


def test_an_error_of_a_stage_is_raised_at_the_step() -> None:
    def broken() -> Iterator[object]:
        yield from batches(steps=2)
        raise OSError("the disk is gone")

    pipeline, source = TablePipeline(ClickModel(TableOptions()), None), broken()
    pipeline.progress(source)
    pipeline.progress(source)
    with pytest.raises(OSError, match="the disk is gone"):
        pipeline.progress(source)


def test_a_bad_id_is_raised_at_the_step() -> None:
    bad = KeyedJaggedTensor(["f", "g"], torch.tensor([1, 99]), lengths=torch.tensor([1, 1]))
    pipeline = TablePipeline(ClickModel(TableOptions()), None)
    with pytest.raises(JoyError, match=r"id 99 is outside of \[0, 60\)"):
        pipeline.progress(iter([(bad, torch.zeros(1))]))


def test_a_batch_larger_than_the_cache_is_an_error_and_no_wait() -> None:
    pipeline = TablePipeline(ClickModel(TableOptions(cache_rows=3)), None)
    with pytest.raises(JoyError, match="rows that are not in the cache"):
        pipeline.progress(batches())
