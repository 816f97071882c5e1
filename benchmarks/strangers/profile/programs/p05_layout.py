"""ConvNeXt-like blocks: LayerNorm over channels in NHWC, convolutions in NCHW, back and forth in each block."""
import torch, torch.nn as nn, torch.nn.functional as F
from harness import loop
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self, c): super().__init__(); self.dw = nn.Conv2d(c, c, 3, padding=1, groups=c); self.n = nn.LayerNorm(c); self.p1, self.p2 = nn.Conv2d(c, 2 * c, 1), nn.Conv2d(2 * c, c, 1); self.n2 = nn.LayerNorm(2 * c)
    def forward(self, x):
        y = self.n(self.dw(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2).contiguous()
        y = self.n2(F.gelu(self.p1(y)).permute(0, 2, 3, 1)).permute(0, 3, 1, 2).contiguous()
        return x + self.p2(y)
net = nn.Sequential(nn.Conv2d(3, 48, 4, 4), *[Block(48) for _ in range(3)], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10)); opt = torch.optim.AdamW(net.parameters(), 1e-3, fused=True)
x, y = torch.randn(8, 3, 96, 96), torch.randint(0, 10, (8,))
def step(i):
    loss = F.cross_entropy(net(x), y); opt.zero_grad(); loss.backward(); opt.step()
loop(step)
