"""A click model on the chip: bags (`bags`), a table that does not fit (`large`, `cached`)."""

from __future__ import annotations

import json
import sys

import torch
from torch import nn

from joymigrate.run import kernels
from joymigrate.run.train.tables import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    KeyedJaggedTensor,
    RowOptimiser,
    TableOptions,
)

ROWS, SIZE = 4_000_000, 64  # 1 GiB of weights


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(50, 8, mode=mode, sparse=mode == "sum") for mode in ("sum", "mean", "max")
        )
        self.top = nn.Linear(24, 1)

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.top(torch.cat([bag(ids, offsets) for bag in self.bags], 1))


def bags(device: torch.device) -> list[float]:
    model = Bags().to(device)
    if device.type != "cpu":
        kernels.apply(model, "ascend", only=["embedding_bag"])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    random, losses = torch.Generator().manual_seed(1), []
    for _ in range(20):
        ids = torch.randint(0, 50, (30,), generator=random).to(device)
        offsets = torch.tensor([0, 3, 3, 10, 22]).to(device)
        loss = model(ids, offsets).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


def table(device: torch.device, options: TableOptions) -> list[float]:
    config = EmbeddingBagConfig(ROWS, SIZE, "t", feature_names=["f"])
    adagrad = RowOptimiser("adagrad", lr=0.1)
    ebc = EmbeddingBagCollection([config], device=device, optimiser=adagrad, options=options)
    random, losses = torch.Generator().manual_seed(1), []
    lengths = torch.full((64,), 10)
    for _ in range(20):
        ids = torch.randint(0, 5000, (640,), generator=random) * 700
        loss = ebc(KeyedJaggedTensor(["f"], ids, lengths=lengths).to(device)).values().square().sum()
        loss.backward()
        losses.append(float(loss.detach()))
    return losses


def main() -> None:
    import torch_npu  # noqa: F401

    what = sys.argv[1]
    if what == "bags":
        found = [bags(torch.device(d)) for d in ("cpu", "npu:0")]
    else:
        options = TableOptions() if what == "large" else TableOptions(cache_rows=100_000)
        found = [table(torch.device("npu:0"), options)]
        found.append(table(torch.device("cpu"), TableOptions(cache_rows=100_000)))
    sys.stdout.write(json.dumps({"losses": found}) + "\n")


if __name__ == "__main__":
    main()
