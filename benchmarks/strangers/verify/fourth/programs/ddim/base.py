"""A sampler alone: an untrained network takes noise away in ten steps, with guidance and some fresh noise."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(113)
device = "cuda" if torch.cuda.is_available() else "cpu"
TIMES, STEPS, WIDE, KINDS, GUIDE, ETA = 1000, 8, 32, 5, 3.0, 0.6


class Mixer(nn.Module):
    """Every place looks at all others."""

    def __init__(self, wide):
        super().__init__()
        self.norm = nn.GroupNorm(8, wide)
        self.qkv, self.out = nn.Conv2d(wide, 3 * wide, 1), nn.Conv2d(wide, wide, 1)

    def forward(self, x):
        n, c, h, w = x.shape
        query, key, value = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, dim=-1)
        weights = torch.softmax(query @ key.transpose(1, 2) * c ** -0.5, dim=-1)
        return x + self.out((weights @ value).transpose(1, 2).reshape(n, c, h, w))


class Res(nn.Module):
    def __init__(self, wide_in, wide_out):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, wide_in), nn.Conv2d(wide_in, wide_out, 3, padding=1)
        self.time = nn.Linear(WIDE, wide_out)
        self.norm2, self.conv2 = nn.GroupNorm(8, wide_out), nn.Conv2d(wide_out, wide_out, 3, padding=1)
        self.skip = nn.Conv2d(wide_in, wide_out, 1) if wide_in != wide_out else nn.Identity()

    def forward(self, x, when):
        inner = self.conv1(F.silu(self.norm1(x))) + self.time(when)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(inner)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = nn.Embedding(KINDS + 1, WIDE)
        self.enter = nn.Conv2d(3, WIDE, 3, padding=1)
        self.down, self.pool = Res(WIDE, 2 * WIDE), nn.Conv2d(2 * WIDE, 2 * WIDE, 3, stride=2, padding=1)
        self.middle, self.mix = Res(2 * WIDE, 2 * WIDE), Mixer(2 * WIDE)
        self.up = Res(4 * WIDE, WIDE)
        self.norm, self.leave = nn.GroupNorm(8, WIDE), nn.Conv2d(WIDE, 3, 3, padding=1)

    def forward(self, x, time, kind):
        rates = torch.exp(-math.log(10000) * torch.arange(WIDE // 2, device=x.device) / (WIDE // 2))
        angles = time.float()[:, None] * rates
        when = F.silu(torch.cat([angles.cos(), angles.sin()], dim=1) + self.kind(kind))
        x = self.enter(x)
        kept = self.down(x, when)
        x = self.mix(self.middle(self.pool(kept), when))
        x = self.up(torch.cat([F.interpolate(x, scale_factor=2.0), kept], dim=1), when)
        return self.leave(F.silu(self.norm(x)))


def alphas():
    """What is left of the picture at each time: betas whose roots lie on a line."""
    betas = torch.linspace(0.00085 ** 0.5, 0.012 ** 0.5, TIMES, device=device) ** 2
    return torch.cumprod(1 - betas, dim=0)


@torch.no_grad()
def sample(model, kinds):
    """Pictures of the given kinds."""
    left = alphas()
    times = (torch.arange(STEPS, device=device) * (TIMES // STEPS)).flip(0) + 1
    x = torch.randn(len(kinds), 3, 8, 8, device=device).contiguous(memory_format=torch.channels_last)
    both = torch.cat([torch.full_like(kinds, KINDS), kinds])
    for now in times:
        guess = model(torch.cat([x, x]), now.expand(len(both)), both)
        plain, asked = guess.chunk(2)
        guess = plain + GUIDE * (asked - plain)
        before = now - TIMES // STEPS
        a, b = left[now], torch.where(before >= 0, left[before.clamp(min=0)], left[0])
        origin = ((x - (1 - a).sqrt() * guess) / a.sqrt()).clamp(-3, 3)
        spread = ETA * ((1 - b) / (1 - a)).sqrt() * (1 - a / b).sqrt()
        noise = torch.randn(x.shape, device=device)
        x = b.sqrt() * origin + (1 - b - spread ** 2).clamp(min=0).sqrt() * guess + spread * noise
        print(f"time {now.item()} mean {x.mean().item():.6f} spread {x.std().item():.6f}", flush=True)
    return x


model = UNet().to(device).to(memory_format=torch.channels_last).eval()
pictures = sample(model, torch.tensor([0, 3, 4], device=device))
print("pictures", " ".join(f"{p.abs().mean().item():.6f}" for p in pictures))
