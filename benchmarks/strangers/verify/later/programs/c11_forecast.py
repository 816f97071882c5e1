"""Forecaster of many series: trend by a moving average, the rest by convolutions over series and time, normalised per series."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(11); g = torch.Generator().manual_seed(5)
class Forecast(nn.Module):
    def __init__(self, past=24, ahead=6):
        super().__init__(); self.trend = nn.Linear(past - 4, ahead); self.c1, self.c2 = nn.Conv2d(1, 12, (1, 3), padding=(0, 1)), nn.Conv2d(12, 12, (3, 3), padding=(1, 2), dilation=(1, 2), bias=False); self.norm = nn.BatchNorm2d(12); self.out = nn.Linear(12 * past, ahead)
    def forward(self, x):                                   # batch, series, time
        m, s = x.mean(-1, keepdim=True), x.std(-1, keepdim=True) + 1e-3; z = (x - m) / s
        h = F.gelu(self.norm(self.c2(F.gelu(self.c1(z[:, None])))))
        y = self.out(h.permute(0, 2, 1, 3).flatten(2)) + self.trend(z.unfold(-1, 5, 1).mean(-1))
        return y * s + m
net = Forecast(); opt = torch.optim.Adam(net.parameters(), 2e-3); t = torch.arange(30.)
for step in range(9):
    f = torch.rand(16, 5, 1, generator=g) + 0.2; x = torch.sin(f * t) * 2 + 0.1 * t + 0.1 * torch.randn(16, 5, 30, generator=g)
    loss = F.huber_loss(net(x[..., :24]), x[..., 24:]); opt.zero_grad(); loss.backward(); opt.step()
    print(f"step {step} loss {loss.item():.5f}")
net.eval()
with torch.no_grad(): print(f"mae {(net(x[..., :24]) - x[..., 24:]).abs().mean().item():.5f}")
