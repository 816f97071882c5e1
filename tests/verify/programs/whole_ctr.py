"""A click model's whole program: no loss module, weights by class, an optimiser written by hand."""

import os

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(40, 8) for _ in range(4))
        self.deep, self.last = nn.Linear(32 + 5, 16), nn.Linear(16, 1)

    def forward(self, ids, dense):
        rows = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        x = torch.cat([*rows, dense.to(rows[0].dtype)], 1)
        return self.last(torch.relu(self.deep(x))).squeeze(1)


def batch(step):
    g = torch.Generator().manual_seed(5 + step)
    ids = torch.randint(0, 40, (16, 4), generator=g)
    raw = torch.rand(16, 5, generator=g) * 100
    return ids, torch.log1p(raw), (torch.rand(16, generator=g) < 0.3).float()


ranker = Ranker()
if MODE == "bfloat16":
    ranker = ranker.to(torch.bfloat16)
lr, eps, total = 0.05, 1e-6, {}
for step in range(8):
    ids, dense, clicked = batch(step)
    with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
        logit = ranker(ids, dense)
    weight = torch.where(clicked > 0, 2.0, 1.0)
    loss = F.binary_cross_entropy_with_logits(logit.float(), clicked, weight=weight)
    positive, negative = logit.float()[clicked > 0], logit.float()[clicked == 0]
    pair = F.softplus(negative[None, :] - positive[:, None]).mean()
    loss = loss + 0.5 * pair
    for p in ranker.parameters():
        p.grad = None
    loss.backward()
    rate = lr * 0.5 ** (step // 5)
    with torch.no_grad():
        for name, p in ranker.named_parameters():
            g = p.grad.float() + 1e-4 * p.float()
            total[name] = total.get(name, torch.zeros_like(g)) + g * g
            p -= (rate * g / (total[name].sqrt() + eps)).to(p.dtype)
with torch.no_grad():
    ids, dense, clicked = batch(400)
    score = torch.sigmoid(ranker(ids, dense).float())
    prior = 0.3
    fixed = score / (score + (1 - score) / prior)
print("mean", f"{fixed.mean().item():.6f}")
