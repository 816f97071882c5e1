"""A GAN over sums of sines; the generator is judged with its running statistics (eval)."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(7)
L = 32
G = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, L), nn.Tanh())
D = nn.Sequential(nn.Linear(L, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
og = torch.optim.Adam(G.parameters(), 2e-3, betas=(0.5, 0.999)); od = torch.optim.Adam(D.parameters(), 2e-3, betas=(0.5, 0.999))
grid = torch.linspace(0, 6.28, L); fixed = torch.randn(16, 8)

def real(n): return 0.8 * torch.sin(grid * torch.randint(1, 4, (n, 1)) + torch.rand(n, 1) * 6.28)

for step in range(10):
    x, z = real(8), torch.randn(8, 8)
    fake = G(z)
    ld = F.softplus(-D(x)).mean() + F.softplus(D(fake.detach())).mean()
    od.zero_grad(); ld.backward(); od.step()
    lg = F.softplus(-D(G(z))).mean()
    og.zero_grad(); lg.backward(); og.step()
    G.eval()
    with torch.no_grad(): sample = G(fixed)
    G.train()
    print(f"{step}: d {ld.item():.4f} g {lg.item():.4f} sample std {sample.std().item():.4f}")
