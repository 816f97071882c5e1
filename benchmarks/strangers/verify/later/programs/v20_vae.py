"""A variational auto-encoder on small synthetic images."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(20)
class VAE(nn.Module):
    def __init__(self, d=64, h=48, z=6):
        super().__init__(); self.enc = nn.Sequential(nn.Linear(d, h), nn.ReLU()); self.mu, self.logvar = nn.Linear(h, z), nn.Linear(h, z)
        self.dec = nn.Sequential(nn.Linear(z, h), nn.ReLU(), nn.Linear(h, d))
    def forward(self, x):
        h = self.enc(x); mu, logvar = self.mu(h), self.logvar(h)
        eps = torch.randn_like(mu)
        return self.dec(mu + eps * (0.5 * logvar).exp()), mu, logvar

net = VAE(); opt = torch.optim.Adam(net.parameters(), 2e-3); g = torch.Generator().manual_seed(7)
grid = torch.stack(torch.meshgrid(torch.arange(8.), torch.arange(8.), indexing="ij"))
for step in range(10):
    at = torch.rand(32, 2, 1, 1, generator=g) * 7
    x = (-((grid - at) ** 2).sum(1) / 3).exp().flatten(1)
    out, mu, logvar = net(x)
    rec = F.binary_cross_entropy_with_logits(out, x, reduction="sum") / 32
    kl = -0.5 * (1 + logvar - mu ** 2 - logvar.exp()).sum(1).mean()
    loss = rec + kl
    opt.zero_grad(); loss.backward(); opt.step()
    print(f"step {step} loss {loss.item():.5f} rec {rec.item():.5f} kl {kl.item():.5f}")
with torch.no_grad(): print(f"sample mean {net.dec(torch.randn(64, 6)).sigmoid().mean().item():.5f}")
