"""A denoiser's whole program: schedule of noise, weights by signal, a guided sampler at the end."""

import os

import torch
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")
STEPS = 50


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.label = nn.Embedding(STEPS, 16), nn.Embedding(6, 16)
        self.a, self.b = nn.Linear(12 + 16, 48), nn.Linear(48, 12)

    def forward(self, x, t, y):
        code = self.time(t) + self.label(y)
        return self.b(torch.nn.functional.silu(self.a(torch.cat([x.to(code.dtype), code], -1))))


class Average:
    """An averaged copy of parameters, kept as tensors."""

    def __init__(self, module, decay):
        self.decay = decay
        self.shadow = {n: p.detach().clone() for n, p in module.named_parameters()}

    @torch.no_grad()
    def update(self, module):
        for n, p in module.named_parameters():
            self.shadow[n].lerp_(p, 1 - self.decay)


net = Denoiser()
if MODE == "bfloat16":
    net = net.to(torch.bfloat16)
average = Average(net, 0.95)
betas = torch.linspace(1e-4, 0.05, STEPS)
alphas = torch.cumprod(1 - betas, 0)
optimiser = torch.optim.AdamW(net.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=6, eta_min=1e-4)
for step in range(6):
    g = torch.Generator().manual_seed(60 + step)
    clean = torch.randn(8, 12, generator=g)
    noise = torch.randn(8, 12, generator=g)
    t = torch.randint(0, STEPS, (8,), generator=g)
    y = torch.randint(0, 5, (8,), generator=g)
    y = torch.where(torch.rand(8, generator=g) < 0.1, 5, y)
    a = alphas[t][:, None]
    noisy = a.sqrt() * clean + (1 - a).sqrt() * noise
    with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
        predicted = net(noisy, t, y)
    snr = (a / (1 - a)).squeeze(1)
    weight = torch.clamp(snr, max=5.0) / snr
    loss = (weight * (predicted.float() - noise).pow(2).mean(-1)).mean()
    loss.backward()
    optimiser.step()
    schedule.step()
    optimiser.zero_grad(set_to_none=True)
    average.update(net)
net.eval()
with torch.no_grad():
    x = torch.randn(4, 12, generator=torch.Generator().manual_seed(3))
    label, none = torch.arange(4), torch.full((4,), 5)
    for i in reversed(range(0, STEPS, 10)):
        t = torch.full((4,), i)
        with_label, without = net(x, t, label).float(), net(x, t, none).float()
        e = without + 3.0 * (with_label - without)
        now, before = alphas[i], alphas[max(i - 10, 0)]
        x0 = (x - (1 - now).sqrt() * e) / now.sqrt()
        x = before.sqrt() * x0 + (1 - before).sqrt() * e
print("sample", f"{x.float().norm().item():.5f}")
