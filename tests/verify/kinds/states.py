"""Modules that write buffers in forward: observers, batch norm, a codebook; a copy by EMA."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.verify.kinds.machine import FAULT, start


class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = 0.01 if FAULT == "rate" else 0.1
        self.register_buffer("peak", torch.tensor(0.0))

    def forward(self, x):
        if self.training:
            top = x.detach().abs().amax()
            self.peak += self.rate * (top - self.peak) if self.peak > 0 else top
        unit = (self.peak / (128 if FAULT == "grid" else 127)).clamp_min(1e-8)
        return x + ((x / unit).round().clamp(-128, 127) * unit - x).detach()


class Codebook(nn.Module):
    """Nearest codes; their counts and sums are moving averages."""

    def __init__(self, codes, dim):
        super().__init__()
        self.register_buffer("codes", torch.randn(codes, dim) * 0.5)
        self.register_buffer("count", torch.ones(codes))
        self.register_buffer("total", self.codes.clone())

    def forward(self, x):
        index = torch.cdist(x, self.codes).argmin(-1)
        if self.training:
            keep = 0.95 if FAULT == "keep" else 0.9
            hot = F.one_hot(index, len(self.codes)).to(x.dtype)
            self.count.mul_(keep).add_(hot.sum(0), alpha=1 - keep)
            self.total.mul_(keep).add_(hot.t() @ x.detach(), alpha=1 - keep)
            self.codes.copy_(self.total / self.count.clamp_min(1e-3).unsqueeze(-1))
        return x + (self.codes[index] - x).detach()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen, self.body = Observer(), nn.Linear(10, 16)
        self.norm = nn.BatchNorm1d(16, momentum=0.02 if FAULT == "momentum" else 0.1)
        self.book, self.head = Codebook(12, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.book(torch.relu(self.norm(self.body(self.seen(x))))))


def main():
    torch.manual_seed(3)
    model = Net()
    average = copy.deepcopy(model).eval()
    x, y = torch.randn(8, 24, 10) * torch.linspace(1, 2, 8).view(-1, 1, 1), torch.randn(8, 24, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    start()
    for step in range(8):
        if step == 4:
            model.eval()
        if step == 5 and FAULT != "left":
            model.train()
        loss = F.mse_loss(model(x[step]), y[step])
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for a, b in zip(average.parameters(), model.parameters(), strict=True):
                a.lerp_(b, 0.01 if FAULT == "ema" else 0.1)
        print(f"step {step} loss: {loss.item():.6f}")


main()
