"""A click predictor: embeddings, two towers, pairwise interaction, and an Adam of its own."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(int(os.environ.get("THREADS", "1")))
DTYPE = getattr(torch, os.environ.get("DTYPE", "float32"))


class Adam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, beta1=0.9, beta2=0.999, eps=1e-8):
        super().__init__(params, {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["m"] = torch.zeros_like(p)
                    state["v"] = torch.zeros_like(p)
                state["step"] += 1
                state["m"].mul_(group["beta1"]).add_(p.grad, alpha=1 - group["beta1"])
                state["v"].mul_(group["beta2"]).addcmul_(p.grad, p.grad, value=1 - group["beta2"])
                m = state["m"] / (1 - group["beta1"] ** state["step"])
                v = state["v"] / (1 - group["beta2"] ** state["step"])
                p.addcdiv_(m, v.sqrt() + group["eps"], value=-group["lr"])


class Tower(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i + 1 < len(self.layers):
                x = F.relu(x)
        return x


class Interaction(nn.Module):
    def forward(self, dense, sparse):
        z = torch.stack([dense, *sparse], 1)
        pairs = z @ z.transpose(1, 2)
        i, j = torch.tril_indices(z.shape[1], z.shape[1], offset=-1)
        return torch.cat([dense, pairs[:, i, j]], 1)


class Ranker(nn.Module):
    def __init__(self, tables=3, d=8):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(50, d, mode="sum") for _ in range(tables))
        self.bottom = Tower([6, 16, d])
        self.interact = Interaction()
        self.top = Tower([d + tables * (tables + 1) // 2, 16, 1])
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, batch):
        dense = self.bottom(batch["dense"])
        sparse = [table(ids) for table, ids in zip(self.tables, batch["ids"])]
        return {"logit": self.top(self.interact(dense, sparse)).squeeze(1) * self.scale}


def batches(count):
    g = torch.Generator().manual_seed(11)
    for _ in range(count):
        yield {
            "dense": torch.randn(16, 6, generator=g).to(DTYPE),
            "ids": [torch.randint(0, 50, (16, 3), generator=g) for _ in range(3)],
            "label": torch.randint(0, 2, (16,), generator=g).float(),
        }


def train():
    ranker = Ranker().to(DTYPE)
    optimiser = Adam(ranker.parameters())
    for batch in batches(4):
        out = ranker(batch)
        loss = F.binary_cross_entropy_with_logits(out["logit"].float(), batch["label"])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        print(loss.item())


train()
