"""A small denoising model in bfloat16 with averaged weights, and a sampler at the end."""
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(23)
device = "cuda" if torch.cuda.is_available() else "cpu"
TIMES, WIDTH = 200, 48
betas = torch.linspace(1e-4, 0.02, TIMES, device=device)
kept = torch.cumprod(1 - betas, dim=0)


def embed_time(time, width):
    """Sine and cosine of the time at falling frequencies."""
    rates = torch.exp(-math.log(10000) * torch.arange(width // 2, device=time.device, dtype=torch.float32) / (width // 2))
    angles = time.float()[:, None] * rates[None, :]
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(4, WIDTH)
        self.qkv = nn.Conv2d(WIDTH, 3 * WIDTH, 1)
        self.out = nn.Conv2d(WIDTH, WIDTH, 1)

    def forward(self, x):
        n, c, h, w = x.shape
        query, key, value = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, dim=-1)
        weights = (query @ key.transpose(1, 2) / math.sqrt(c)).softmax(dim=-1)
        return x + self.out((weights @ value).transpose(1, 2).reshape(n, c, h, w))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.enter = nn.Conv2d(1, WIDTH, 3, padding=1)
        self.mix = Mixer()
        self.norm = nn.GroupNorm(4, WIDTH)
        self.leave = nn.Conv2d(WIDTH, 1, 3, padding=1)

    def forward(self, x, time):
        when = self.time(embed_time(time, WIDTH).to(x.dtype))
        x = self.enter(x) + when[:, :, None, None]
        x = self.mix(x)
        return self.leave(F.silu(self.norm(x)))


model = Denoiser().to(device, torch.bfloat16)
average = copy.deepcopy(model).float().requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
images = torch.randn(48, 1, 8, 8).cumsum(2).clamp(-2, 2)

for step in range(5):
    clean = images[step * 8: step * 8 + 8].to(device)
    time = torch.randint(0, TIMES, (8,), device=device)
    noise = torch.randn(clean.shape, device=device)
    share = kept[time][:, None, None, None]
    noisy = share.sqrt() * clean + (1 - share).sqrt() * noise
    guess = model(noisy.to(torch.bfloat16), time)
    loss = F.mse_loss(guess.float(), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.mul_(0.9).add_(fast.float(), alpha=0.1)
    print(f"step {step} loss {loss.item():.6f}", flush=True)

with torch.no_grad():
    x = torch.randn(4, 1, 8, 8, device=device)
    for now in range(TIMES - 1, 0, -40):
        guess = average(x, torch.full((4,), now, device=device))
        origin = (x - (1 - kept[now]).sqrt() * guess) / kept[now].sqrt()
        before = kept[max(now - 40, 0)]
        x = before.sqrt() * origin.clamp(-3, 3) + (1 - before).sqrt() * guess
print(f"sample mean {x.mean().item():.5f} spread {x.std().item():.5f}")
