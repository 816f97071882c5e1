"""A residual CNN with group norm; the accelerator uses another convolution (unfold + matmul) and another thread count."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(0)
class Res(nn.Module):
    def __init__(self, c):
        super().__init__(); self.a, self.b = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1); self.n = nn.GroupNorm(4, c)
    def forward(self, x): return x + self.b(F.silu(self.n(self.a(x))))
net = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), Res(16), Res(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
opt = torch.optim.AdamW(net.parameters(), 2e-3)
g = torch.Generator().manual_seed(1)
for step in range(8):
    x = torch.rand(16, 3, 24, 24, generator=g); y = x.mean((2, 3)).argmax(-1)
    loss = F.cross_entropy(net(x), y); opt.zero_grad(); loss.backward(); opt.step()
    print(f"step {step} loss {loss.item():.6f}")
