"""A mixer over tokens and channels."""
import torch, torch.nn as nn, torch.nn.functional as F
from harness import loop
torch.manual_seed(0)
class Mix(nn.Module):
    def __init__(self, d, t): super().__init__(); self.a, self.b = nn.Linear(t, t), nn.Linear(d, d)
    def forward(self, x):
        y = x.transpose(1, 2).contiguous(); y = self.a(y).transpose(1, 2).contiguous()
        return x + F.relu(self.b((x + y).contiguous()).transpose(1, 2).contiguous().transpose(1, 2).contiguous())
net = nn.Sequential(*[Mix(256, 128) for _ in range(4)], nn.Linear(256, 4)); opt = torch.optim.AdamW(net.parameters(), 1e-3, fused=True)
x, y = torch.randn(16, 128, 256), torch.randint(0, 4, (16,))
def step(i):
    loss = F.cross_entropy(net(x).mean(1), y); opt.zero_grad(); loss.backward(); opt.step()
loop(step)
