"""A classifier over epochs of a shuffled loader: augmentation at random, an optimiser of its own,
a rate computed by hand, metrics that are printed, and files that are written."""

import json
import os
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

SEED = int(os.environ.get("SEED", "0"))
torch.manual_seed(SEED)
np.random.seed(SEED)
random.seed(SEED)
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")
OUT = os.environ.get("OUT", "")


class Points(Dataset):
    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 3, (count,), generator=g)
        self.x = torch.randn(count, 10, generator=g) + 2.0 * F.one_hot(self.y, 10)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = self.x[i]
        if random.random() < 0.5:
            x = x.flip(0) * 0.1 + x
        x = x + torch.from_numpy(np.random.normal(0, 0.05, 10)).float()
        return x, self.y[i]


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            one, two = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["speed"], state["count"] = torch.zeros_like(p), 0
                state["count"] += 1
                warm = min(1.0, state["count"] / 4)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                speed = state["speed"]
                p.add_(torch.sign(speed * one + p.grad * (1 - one)), alpha=-group["lr"] * warm)
                speed.mul_(two).add_(p.grad, alpha=1 - two)


net = nn.Sequential(nn.Linear(10, 24), nn.GELU(), nn.Dropout(0.1), nn.Linear(24, 3))
if MODE == "bfloat16":
    net = net.to(torch.bfloat16)
data, held = Points(50, 7), Points(24, 8)
order = torch.Generator().manual_seed(5)
loader = DataLoader(data, batch_size=8, sampler=RandomSampler(data, generator=order), drop_last=True)
optimiser = Lion(net.parameters(), lr=2e-3)
history, step = [], 0
for epoch in range(4):
    net.train()
    total = 0.0
    for x, y in loader:
        noise = torch.randn(len(x), 1) * 0.01
        with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
            logits = net((x + noise).to(next(net.parameters()).dtype))
        loss = F.cross_entropy(logits.float(), y)
        for group in optimiser.param_groups:
            group["lr"] = 2e-3 * 0.5 ** (step // 10)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total += loss.item()
        step += 1
    net.eval()
    right, count = 0, 0
    with torch.no_grad():
        for x, y in DataLoader(held, batch_size=12):
            guess = net(x.to(next(net.parameters()).dtype)).float().argmax(-1)
            right += int((guess == y).sum())
            count += len(y)
    history.append({"epoch": epoch, "loss": total / len(loader), "accuracy": right / count})
    print(f"epoch {epoch}: loss {total / len(loader):.5f} accuracy {right / count:.4f}")
with torch.no_grad():
    probs = net(held.x.to(next(net.parameters()).dtype)).float().softmax(-1)
    score = -(probs * probs.clamp_min(1e-9).log()).sum(-1)
print("mean entropy", round(score.mean().item(), 5))
if OUT:
    np.save(os.path.join(OUT, "scores.npy"), score.numpy())
    torch.save({"net": net.state_dict(), "step": step}, os.path.join(OUT, "model.pt"))
    with open(os.path.join(OUT, "history.json"), "w") as file:
        json.dump(history, file)
