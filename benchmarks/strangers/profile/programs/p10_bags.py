"""Click model with 20 multi-valued fields; each bag is looked up and added on its own."""
import torch, torch.nn as nn, torch.nn.functional as F
from harness import loop
torch.manual_seed(0)
class Model(nn.Module):
    def __init__(self): super().__init__(); self.t = nn.ModuleList([nn.Embedding(1000, 16) for _ in range(20)]); self.top = nn.Sequential(nn.Linear(320, 64), nn.ReLU(), nn.Linear(64, 1))
    def forward(self, bags): return self.top(torch.stack([torch.cat([t(ids).sum(0) for t, ids in zip(self.t, row)]) for row in bags]))
net = Model(); opt = torch.optim.SGD(net.parameters(), 0.1, fused=True); g = torch.Generator().manual_seed(0)
B = [[torch.randint(0, 1000, (int(torch.randint(1, 6, (1,), generator=g)),), generator=g) for _ in range(20)] for _ in range(24)]; y = torch.rand(24, generator=g).round()
def step(i):
    loss = F.binary_cross_entropy_with_logits(net(B).squeeze(1), y); opt.zero_grad(); loss.backward(); opt.step()
loop(step)
