"""A convolutional VAE with free bits and annealed KL weight."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(14); g = torch.Generator().manual_seed(8)
class VAE(nn.Module):
    def __init__(self):
        super().__init__(); self.enc = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.SiLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.SiLU(), nn.Flatten()); self.stat = nn.Linear(64, 8)
        self.dec = nn.Sequential(nn.Linear(4, 64), nn.SiLU(), nn.Unflatten(1, (16, 2, 2)), nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1))
    def forward(self, x):
        mu, raw = self.stat(self.enc(x)).chunk(2, 1); sd = F.softplus(raw) + 1e-3
        return self.dec(mu + sd * torch.randn_like(sd)), mu, sd
net = VAE(); opt = torch.optim.Adamax(net.parameters(), 3e-3)
for step in range(8):
    x = torch.rand(32, 1, 8, 8, generator=g).round(); out, mu, sd = net(x)
    kl = (0.5 * (mu ** 2 + sd ** 2 - 1) - sd.log()).mean(0).clamp_min(0.02).sum(); rec = ((out.sigmoid() - x) ** 2).sum((1, 2, 3)).mean()
    loss = rec + min(1.0, step / 5) * kl; opt.zero_grad(); loss.backward(); opt.step()
    print(f"step {step} rec {rec.item():.5f} kl {kl.item():.5f}")
