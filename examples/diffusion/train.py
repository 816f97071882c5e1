"""Train a small diffusion U-Net on rings and crosses, then draw some.

    python train.py --steps 500
    python train.py --device cpu --steps 4 --samples 0
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from kernels import gated_silu


def embed(time: torch.Tensor, width: int) -> torch.Tensor:
    """Sines and cosines of the diffusion time."""
    rates = torch.exp(-math.log(10000) * torch.arange(width // 2, device=time.device) / (width // 2))
    angles = time[:, None] * rates[None]
    return torch.cat((angles.sin(), angles.cos()), 1)


class Block(nn.Module):
    def __init__(self, inner: int, outer: int, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, inner)
        self.conv = nn.Conv2d(inner, outer, 3, padding=1)
        self.time = nn.Linear(width, 2 * outer)
        self.out = nn.Conv2d(outer, outer, 3, padding=1)
        self.short = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        scale, gate = self.time(time)[:, :, None, None].chunk(2, 1)
        h = self.conv(F.silu(self.norm(x)))
        h = gated_silu(h * (1 + scale), torch.sigmoid(gate).expand_as(h))
        return self.out(h) + self.short(x)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(4, width), heads
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w).unbind(1)
        q, k, v = (part.transpose(-1, -2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.down1, self.down2 = Block(width, width, width), Block(width, 2 * width, width)
        self.middle = Attention(2 * width)
        self.up2, self.up1 = Block(4 * width, width, width), Block(2 * width, width, width)
        self.leave = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        t = self.time(embed(time, self.width))
        x = self.enter(x)
        a = self.down1(x, t)
        b = self.down2(F.avg_pool2d(a, 2), t)
        m = self.middle(b)
        u = F.interpolate(self.up2(torch.cat((m, b), 1), t), scale_factor=2, mode="nearest")
        return self.leave(self.up1(torch.cat((u, a), 1), t))


def drawings(size: int, generator: torch.Generator) -> torch.Tensor:
    """Rings and crosses of 16 x 16, in -1 to 1."""
    at = torch.randint(5, 11, (size, 2, 1, 1), generator=generator)
    rows, columns = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    far = ((rows - at[:, 0]) ** 2 + (columns - at[:, 1]) ** 2).float().sqrt()
    ring = (far - 4).abs() < 1
    cross = ((rows - at[:, 0]).abs() < 1) | ((columns - at[:, 1]).abs() < 1)
    which = torch.rand(size, 1, 1, generator=generator) < 0.5
    return torch.where(which, ring, cross).float().unsqueeze(1) * 2 - 1


def corrupt(clean: torch.Tensor, noise: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
    """Variance-preserving noise; pixels that leave the range are pulled back."""
    keep = torch.cos(time * math.pi / 2)[:, None, None, None]
    noisy = keep * clean + (1 - keep**2).sqrt() * noise
    noisy[noisy > 4] = 4.0
    noisy[noisy < -4] = -4.0
    return noisy


@torch.no_grad()
def draw(model: UNet, count: int, device: torch.device, steps: int = 20) -> torch.Tensor:
    generator = torch.Generator(device="cuda" if device.type == "cuda" else "cpu").manual_seed(3)
    x = torch.randn(count, 1, 16, 16, generator=generator, device=device)
    for step in range(steps, 0, -1):
        now = torch.full((count,), step / steps, device=device)
        keep, later = math.cos(step / steps * math.pi / 2), math.cos((step - 1) / steps * math.pi / 2)
        noise = model(x, now * 100)
        clean = ((x - (1 - keep**2) ** 0.5 * noise) / max(keep, 1e-3)).clamp(-1, 1)
        x = later * clean + (1 - later**2) ** 0.5 * noise
    return x


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("out"))
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = UNet().to(device)
    average = {name: value.detach().clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    args.out.mkdir(parents=True, exist_ok=True)
    with open(args.out / "metrics.jsonl", "w") as log:
        for step in range(args.steps):
            clean = drawings(args.batch_size, generator).to(device)
            noise = torch.randn(clean.shape, generator=generator).to(device)
            time = torch.rand(args.batch_size, generator=generator).to(device)
            predicted = model(corrupt(clean, noise, time), time * 100)
            loss = F.mse_loss(predicted, noise)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            for name, value in model.state_dict().items():
                average[name].lerp_(value, 0.01)
            log.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    if args.samples:
        model.load_state_dict(average)
        for picture in draw(model, args.samples, device).cpu():
            print("\n".join("".join(" .:#"[int(p)] for p in row) for row in (picture[0] + 1) * 1.5))
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
