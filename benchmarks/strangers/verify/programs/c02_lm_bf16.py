"""A bfloat16 language model (weights in bf16) on scaled_dot_product_attention."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(2)
class Block(nn.Module):
    def __init__(self, d=64, h=4):
        super().__init__(); self.h = h; self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d); self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.g, self.u, self.d = nn.Linear(d, 128, bias=False), nn.Linear(d, 128, bias=False), nn.Linear(128, d, bias=False)
    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        y = self.n2(x); return x + self.d(F.silu(self.g(y)) * self.u(y))
class LM(nn.Module):
    def __init__(self):
        super().__init__(); self.e = nn.Embedding(64, 64); self.b = nn.ModuleList([Block(), Block()]); self.n = nn.RMSNorm(64); self.h = nn.Linear(64, 64, bias=False)
    def forward(self, i):
        x = self.e(i)
        for b in self.b: x = b(x)
        return self.h(self.n(x))
m = LM().bfloat16(); opt = torch.optim.AdamW(m.parameters(), 1e-3)
g = torch.Generator().manual_seed(3)
for step in range(6):
    s = torch.randint(0, 64, (8, 1), generator=g); x = (s + 3 * torch.arange(33)) % 64
    loss = F.cross_entropy(m(x[:, :-1]).float().flatten(0, 1), x[:, 1:].flatten())
    opt.zero_grad(); loss.backward(); opt.step(); print(step, f"{loss.item():.4f}")
