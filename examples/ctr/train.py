"""Click-through rate with embedding tables and feature crosses (a small DLRM).

    python train.py --steps 200
    python train.py --device cpu --steps 5
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

FIELDS = [1000, 500, 200, 50]  # rows of each table
DENSE = 8


def batch(size: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Dense features, bags of ids with their offsets per field, and clicks that depend on both."""
    dense = torch.randn(size, DENSE, generator=generator)
    ids, offsets = [], []
    score = dense[:, 0] - 0.5 * dense[:, 1]
    for rows in FIELDS:
        lengths = torch.randint(1, 4, (size,), generator=generator)
        start = torch.cumsum(lengths, 0) - lengths
        bag = (torch.rand(int(lengths.sum()), generator=generator) ** 2 * rows).long()
        ids.append(bag)
        offsets.append(start)
        score = score + (bag[start] % 7 == 0).float()
    clicks = (torch.rand(size, generator=generator) < torch.sigmoid(score - 0.5)).float()
    return dense, ids, offsets, clicks


class DLRM(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, width, mode="sum") for rows in FIELDS
        )
        self.bottom = nn.Sequential(nn.Linear(DENSE, 32), nn.ReLU(), nn.Linear(32, width))
        pairs = (len(FIELDS) + 1) * len(FIELDS) // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 32), nn.ReLU(), nn.Linear(32, 1))
        rows, columns = torch.tril_indices(len(FIELDS) + 1, len(FIELDS) + 1, offset=-1)
        self.register_buffer("rows", rows)
        self.register_buffer("columns", columns)

    def forward(self, dense, ids, offsets) -> torch.Tensor:
        x = self.bottom(dense)
        vectors = [x] + [t(i, o) for t, i, o in zip(self.tables, ids, offsets)]
        stacked = torch.stack(vectors, 1)
        crosses = torch.bmm(stacked, stacked.transpose(1, 2))[:, self.rows, self.columns]
        return self.top(torch.cat((x, crosses), 1)).squeeze(1)


def auc(scores: torch.Tensor, clicks: torch.Tensor) -> float:
    """Area under the ROC curve, by ranks."""
    order = torch.argsort(scores)
    ranks = torch.empty_like(scores).scatter_(0, order, torch.arange(1.0, len(scores) + 1, device=scores.device))
    positive = clicks.sum()
    negative = len(clicks) - positive
    if positive == 0 or negative == 0:
        return 0.5
    return float((ranks[clicks > 0].sum() - positive * (positive + 1) / 2) / (positive * negative))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("out"))
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    model = DLRM().to(device)
    tables = torch.optim.Adagrad(model.tables.parameters(), lr=0.1)
    dense = torch.optim.Adam([*model.bottom.parameters(), *model.top.parameters()], lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    args.out.mkdir(parents=True, exist_ok=True)
    with open(args.out / "metrics.jsonl", "w") as log:
        for step in range(args.steps):
            features, ids, offsets, clicks = batch(args.batch_size, generator)
            features, clicks = features.to(device), clicks.to(device)
            ids = [part.to(device) for part in ids]
            offsets = [part.to(device) for part in offsets]
            logits = model(features, ids, offsets)
            loss = F.binary_cross_entropy_with_logits(logits, clicks)
            for optimizer in (tables, dense):
                optimizer.zero_grad()
            loss.backward()
            for optimizer in (tables, dense):
                optimizer.step()
            row = {"step": step, "loss": loss.item(), "auc": auc(logits.detach(), clicks)}
            log.write(json.dumps(row) + "\n")
            print(f"step {step} loss {row['loss']:.4f} auc {row['auc']:.3f}", flush=True)
    if device.type == "cuda":
        print(torch.cuda.memory_summary(device, abbreviated=True))


if __name__ == "__main__":
    main()
