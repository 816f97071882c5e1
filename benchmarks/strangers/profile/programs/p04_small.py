"""A gated recurrent cell written by hand, one time step after the other."""
import torch, torch.nn as nn, torch.nn.functional as F
from harness import loop
torch.manual_seed(0)
class Cell(nn.Module):
    def __init__(self, i, h): super().__init__(); self.x, self.h, self.n = nn.Linear(i, 3 * h), nn.Linear(h, 3 * h), h
    def forward(self, x):
        h = x.new_zeros(x.shape[0], self.n); out = []
        for t in range(x.shape[1]):
            a, b, c = self.x(x[:, t]).chunk(3, -1); d, e, f = self.h(h).chunk(3, -1)
            z, r = torch.sigmoid(a + d), torch.sigmoid(b + e); h = (1 - z) * torch.tanh(c + r * f) + z * h; out.append(h)
        return torch.stack(out, 1)
net = nn.ModuleDict({"rnn": Cell(8, 24), "out": nn.Linear(24, 2)}); opt = torch.optim.AdamW(net.parameters(), 1e-3, fused=True)
x = torch.randn(8, 120, 8); y = (x.sum((1, 2)) > 0).long()
def step(i):
    loss = F.cross_entropy(net["out"](net["rnn"](x)[:, -1]), y); opt.zero_grad(); loss.backward(); opt.step()
loop(step)
