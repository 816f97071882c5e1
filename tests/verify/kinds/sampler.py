"""A diffusion sampler in bfloat16, and a quality figure of what it made."""

import torch
import torch.nn as nn

from tests.verify.kinds.machine import FAULT, start


class Denoiser(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.time, self.inp = nn.Embedding(50, 32), nn.Linear(dim, 32)
        self.body, self.out = (
            nn.Sequential(nn.SiLU(), nn.Linear(32, 32), nn.SiLU()),
            nn.Linear(32, dim),
        )

    def forward(self, x, t):
        return self.out(self.body(self.inp(x) + self.time(t)))


@torch.no_grad()
def sample(model, x, steps=10):
    end = 0.03 if FAULT == "betas" else 0.02
    betas = torch.linspace(1e-4, end, 50, dtype=torch.float32)
    bar = torch.cumprod(1 - betas, 0)
    for t in range(49, -1, -50 // steps):
        noise = model(x, torch.full((x.shape[0],), t))
        a, b = bar[t], bar[max(t - 50 // steps, 0)]
        clean = (x - (1 - a).sqrt().to(x.dtype) * noise) / a.sqrt().to(x.dtype)
        if FAULT != "unclipped":
            clean = clean.clamp(-2, 2)
        x = b.sqrt().to(x.dtype) * clean + (1 - b).sqrt().to(x.dtype) * noise
    return x


def main():
    torch.manual_seed(2)
    model = Denoiser().to(torch.bfloat16).eval()
    noise = torch.randn(8, 16).to(torch.bfloat16)
    start()
    made = sample(model, noise)
    print(f"mean {made.float().mean().item():.5f} spread {made.float().std().item():.5f}")


main()
