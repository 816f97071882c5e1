"""A mixer over time and channels: transposed, expanded, offset and strided tensors; Adam."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.verify.kinds.machine import FAULT, start


class Gate(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x, mask):
        return torch.where(mask, x + self.bias, x * 0.5)


class Scale(nn.Module):
    def forward(self, w, x):
        return w * x


class Squash(nn.Module):
    def forward(self, x):
        return torch.tanh(x)


class Rank(nn.Module):
    def forward(self, x):
        return x.sort(-1)[0]


class Mixer(nn.Module):
    def __init__(self, steps, dim):
        super().__init__()
        self.inp = nn.Linear(dim, dim)
        self.time = nn.Linear(steps, steps)
        self.act, self.gate, self.scale = nn.ELU(), Gate(dim), Scale()
        self.squash, self.rank = Squash(), Rank()
        self.norm = nn.LayerNorm(dim, eps=1e-3 if FAULT == "eps" else 1e-5)
        self.mix = nn.Parameter(torch.randn(dim, 3).mul_(0.3).t())
        self.amount = nn.Parameter(torch.randn(12, 1, 1).mul_(0.2).add_(1))

    def forward(self, x, mask):
        h = self.inp(x)
        h = self.act(self.time(h.transpose(1, 2)).transpose(1, 2))
        h = self.gate(self.norm(h), mask.t().unsqueeze(-1))
        h = self.scale(self.amount.expand(12, h.shape[1], h.shape[2]), h)
        left, right = h.chunk(2, 0)
        h = torch.cat([left, self.squash(right)])
        return self.rank((h @ self.mix.t()).transpose(1, 2))


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.act, self.head = nn.Conv2d(3, 6, 3), nn.SiLU(), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.act(self.conv(x)).mean((2, 3)))


def main():
    torch.manual_seed(6)
    x, y = torch.randn(4, 12, 7, 8), torch.randn(4, 12, 3, 7) * 0.3
    mask = torch.rand(7, 12) > 0.4
    pixels = torch.randn(4, 5, 3, 9, 9).to(memory_format=torch.preserve_format)
    model = nn.ModuleDict({"mixer": Mixer(7, 8), "pictures": Pictures()})
    model["pictures"].to(memory_format=torch.channels_last)
    opt = torch.optim.Adam(model.parameters(), lr=2e-2, foreach=FAULT == "foreach")
    start()
    for step in range(4):
        batch = x[step].contiguous()
        loss = F.mse_loss(model["mixer"](batch, mask), y[step])
        picture = pixels[step].contiguous(memory_format=torch.channels_last)
        loss = loss + 0.1 * model["pictures"](picture).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss: {loss.item():.6f}")


main()
