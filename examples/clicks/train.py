"""A click model whose table of users does not fit the card, which keeps learning from a stream.

    python train.py --device npu:0 --steps 40                       # generated clicks
    python feed.py redis://localhost:6379/0 --clicks 4000           # somebody clicks
    python train.py --device npu:0 --resume --stream redis://localhost:6379/0

With `--whole` the table lies on the device as a whole, as before the two marked lines.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from joymigrate.run.train.tables import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    KeyedJaggedTensor,
    RowOptimiser,
    TableOptions,
)

USERS, ITEMS, SIZE, SAMPLES = 4_000_000, 500, 64, 256  # 1 GiB of users, 1 GiB of their state
STREAM = "clicks"
Batch = tuple[KeyedJaggedTensor, Tensor]


class Clicks(nn.Module):
    """User and item, multiplied, and an MLP over both."""

    def __init__(self, device: str, whole: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(USERS, SIZE, "user", feature_names=["user"],
                                   weight_init_min=-0.05, weight_init_max=0.05),
                EmbeddingBagConfig(ITEMS, SIZE, "item", feature_names=["item"],
                                   weight_init_min=-0.05, weight_init_max=0.05),
            ],
            device=device,
            optimiser=RowOptimiser("adagrad", lr=0.1),  # line 1: rows change in the backward pass
            options=TableOptions() if whole else TableOptions(cache_rows=100_000),  # line 2
        )  # fmt: skip
        self.top = nn.Sequential(nn.Linear(2 * SIZE, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)

    def forward(self, keyed: KeyedJaggedTensor) -> Tensor:
        """Logits [B]."""
        rows = self.tables(keyed).values()
        user, item = rows.split(SIZE, 1)
        logits: Tensor = self.top(rows)[:, 0] + (user * item).sum(1)
        return logits


def batch_of(users: Tensor, items: Tensor, clicks: Tensor) -> Batch:
    """One user and one item in each sample."""
    lengths = torch.ones(2 * len(users), dtype=torch.int64)
    return KeyedJaggedTensor(["user", "item"], torch.cat((users, items)), lengths=lengths), clicks


def click(users: Tensor, items: Tensor) -> Tensor:
    """Every third item is liked, and every fifth one by half of the users."""
    return ((items % 3 == 0) | ((items % 5 == 0) & (users % 2 == 0))).float()


def generated(steps: int, seed: int) -> Iterator[Batch]:
    """Few users are there often."""
    random = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        users = (torch.rand(SAMPLES, generator=random) ** 8 * USERS).long()
        items = torch.randint(0, ITEMS, (SAMPLES,), generator=random)
        yield batch_of(users, items, click(users, items))


def streamed(url: str, after: dict[str, str], idle_s: float) -> Iterator[Batch]:
    """Batches of a Redis stream behind `after["id"]`, which goes on; ends when nobody clicks."""
    import redis

    server = redis.Redis.from_url(url, decode_responses=True)
    while found := server.xread({STREAM: after["id"]}, SAMPLES, int(1000 * idle_s)):
        entries = found[0][1]
        columns = [
            torch.tensor([int(entry[name]) for _, entry in entries])
            for name in ("user", "item", "click")
        ]
        yield batch_of(columns[0], columns[1], columns[2].float())
        after["id"] = entries[-1][0]  # the batch was learned when the next one is asked for


def save(path: Path, state: dict[str, object]) -> None:
    """Whole or not at all."""
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def main() -> None:
    """Train, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--whole", action="store_true", help="the whole table on the device")
    parser.add_argument("--stream", help="redis://…: go on with what is clicked now")
    parser.add_argument("--idle", type=float, default=2.0, help="seconds without a click: the end")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("run"))
    options = parser.parse_args()
    if options.device.startswith("npu"):
        import torch_npu  # noqa: F401
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / "model.pt"
    model = Clicks(options.device, options.whole)
    optimiser = torch.optim.Adam(model.top.parameters(), lr=0.01)
    after = {"id": "0"}
    if options.resume:
        state = torch.load(kept, weights_only=True)
        model.top.load_state_dict(state["top"])
        optimiser.load_state_dict(state["optimiser"])
        after = state["after"]
        for name, (ids, rows, held) in state["tables"].items():
            model.tables.table(name).load(ids.numpy(), rows, held)
    source = generated(options.steps, seed=1)
    if options.stream:
        source = streamed(options.stream, after, options.idle)
    losses, clicks, start = [], 0, time.perf_counter()
    for keyed, labels in source:
        logits = model(keyed.to(torch.device(options.device)))
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels.to(options.device))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
        clicks += len(labels)
    tables = {}
    for table in model.tables.local_tables():
        chunks = list(table.row_chunks(table.changed_slots(0)))  # rows that were learned
        tables[table.name] = (
            torch.cat([torch.from_numpy(ids.copy()) for ids, _, _ in chunks]),
            torch.cat([rows for _, rows, _ in chunks]),
            torch.cat([held for _, _, held in chunks]),
        )
    save(kept, {"top": model.top.state_dict(), "optimiser": optimiser.state_dict(),
                "after": after, "tables": tables})  # fmt: skip
    report = {
        "samples": clicks,
        "losses": [sum(part) / max(1, len(part)) for part in (losses[:5], losses[-5:])],
        "rows_learned": {name: len(ids) for name, (ids, _, _) in tables.items()},
        "cache": {
            table.name: round(table.tier.figures.rate, 3) for table in model.tables.local_tables()
        },
        "stream": after["id"],
        "seconds": round(time.perf_counter() - start, 2),
    }
    (options.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
