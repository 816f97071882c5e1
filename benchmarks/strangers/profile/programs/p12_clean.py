"""Nothing wrong: a transformer block on fixed shapes, float32, fused optimiser, data in memory, no host read inside the step."""
import torch, torch.nn as nn, torch.nn.functional as F
from harness import loop
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self, d=256): super().__init__(); self.n = nn.LayerNorm(d); self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d); self.n2 = nn.LayerNorm(d); self.m = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
    def forward(self, x):
        b, t, d = x.shape; q, k, v = self.qkv(self.n(x)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)); return x + self.m(self.n2(x))
net = nn.Sequential(nn.Embedding(1024, 256), Block(), Block(), nn.Linear(256, 1024)); opt = torch.optim.AdamW(net.parameters(), 1e-3, fused=True)
x = torch.randint(0, 1024, (8, 129))
def step(i):
    loss = F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()); opt.zero_grad(set_to_none=True); loss.backward(); opt.step()
loop(step)
