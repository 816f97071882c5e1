"""Ancestral (DDPM) sampling of 2-D points; every 20th step, noise from a seeded generator."""
import math, torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(0)
N = 400
betas = torch.linspace(1e-4, 0.02, N)
abar = (1 - betas).cumprod(0)

class Denoiser(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.t1 = nn.Linear(32, d); self.inp = nn.Linear(2, d)
        self.mid = nn.ModuleList([nn.Linear(d, d) for _ in range(3)]); self.out = nn.Linear(d, 2)
    def forward(self, x, t):
        f = torch.exp(-math.log(1e4) * torch.arange(16) / 16) * t[:, None]
        h = self.inp(x) + self.t1(torch.cat([f.sin(), f.cos()], -1))
        for m in self.mid: h = h + F.silu(m(h))
        return self.out(h)

net = Denoiser(); opt = torch.optim.Adam(net.parameters(), 2e-3)
def moons(n):
    a = torch.rand(n) * math.pi; s = torch.randint(0, 2, (n,)) * 2 - 1
    return torch.stack([a.cos() * s + 0.5 * s, a.sin() * s], -1) + 0.05 * torch.randn(n, 2)

for step in range(30):
    x = moons(128); t = torch.randint(0, N, (128,)); e = torch.randn_like(x)
    a = abar[t][:, None]
    loss = F.mse_loss(net(a.sqrt() * x + (1 - a).sqrt() * e, t.float()), e)
    opt.zero_grad(); loss.backward(); opt.step()
print(f"trained: {loss.item():.4f}")

with torch.no_grad():
    gen = torch.Generator().manual_seed(5); x = torch.randn(256, 2, generator=gen)
    ts = list(range(N - 1, -1, -20))
    for t, s in zip(ts, ts[1:] + [-1]):
        e = net(x, torch.full((256,), float(t)))
        a, b = abar[t], (abar[s] if s >= 0 else torch.tensor(1.0))
        x0 = (x - (1 - a).sqrt() * e) / a.sqrt()
        sig = ((1 - b) / (1 - a) * (1 - a / b)).clamp_min(0).sqrt()
        x = b.sqrt() * x0 + (1 - b - sig ** 2).clamp_min(0).sqrt() * e + sig * torch.randn(256, 2, generator=gen)
print("mean", [round(v, 4) for v in x.mean(0).tolist()], "std", [round(v, 4) for v in x.std(0).tolist()])
