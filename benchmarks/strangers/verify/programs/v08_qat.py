"""Quantisation-aware training: own fake-quant modules with observers in buffers; observers freeze after a while."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(21)
class Observe(nn.Module):
    """Tracks the range of what passes and rounds it to 8 bits."""
    def __init__(self):
        super().__init__()
        self.register_buffer("top", torch.tensor(1.0)); self.register_buffer("seen", torch.tensor(0))
    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.top.lerp_(x.detach().abs().amax(), 0.05); self.seen += 1
        s = (self.top / 127).clamp_min(1e-8)
        q = (x / s).round().clamp(-128, 127) * s
        return x + (q - x).detach()

class QLinear(nn.Linear):
    def forward(self, x):
        s = self.weight.detach().abs().amax(1, keepdim=True) / 127
        w = self.weight + ((self.weight / s).round() * s - self.weight).detach()
        return F.linear(x, w, self.bias)

net = nn.Sequential(Observe(), QLinear(20, 64), nn.ReLU(), Observe(), QLinear(64, 64), nn.ReLU(), Observe(), QLinear(64, 5))
opt = torch.optim.SGD(net.parameters(), 0.1)
g = torch.Generator().manual_seed(0); W = torch.randn(20, 5, generator=g)
for step in range(10):
    x = torch.randn(64, 20, generator=g) * 2; y = (x @ W).argmax(-1)
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
net.eval()
x = torch.randn(512, 20, generator=g) * 2
print("ranges", [round(float(m.top), 4) for m in net if isinstance(m, Observe)], "acc", (net(x).argmax(-1) == (x @ W).argmax(-1)).float().mean().item())
