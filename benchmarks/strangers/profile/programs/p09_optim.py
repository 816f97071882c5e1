"""Many small experts, updated by AdamW one parameter after the other."""
import torch, torch.nn as nn, torch.nn.functional as F
from harness import loop
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(32, 64), *[nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.SiLU()) for _ in range(24)], nn.Linear(64, 4)); opt = torch.optim.AdamW(net.parameters(), 1e-3, foreach=False, fused=False)
x, y = torch.randn(64, 32), torch.randint(0, 4, (64,))
def step(i):
    loss = F.cross_entropy(net(x), y); opt.zero_grad(); loss.backward(); opt.step()
loop(step)
