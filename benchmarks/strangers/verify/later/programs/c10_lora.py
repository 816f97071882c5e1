"""LoRA: low-rank adapters on frozen projections of a small encoder, under autocast to bfloat16."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(10); g = torch.Generator().manual_seed(4)
class LoRA(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__(); self.base = base.requires_grad_(False); self.A = nn.Linear(base.in_features, r, bias=False); self.B = nn.Linear(r, base.out_features, bias=False); self.scale = alpha / r; nn.init.zeros_(self.B.weight)
    def forward(self, x): return self.base(x) + self.scale * self.B(self.A(x))
class Encoder(nn.Module):
    def __init__(self):
        super().__init__(); self.emb = nn.Embedding(60, 32).requires_grad_(False); self.q, self.v = LoRA(nn.Linear(32, 32)), LoRA(nn.Linear(32, 32)); self.k = nn.Linear(32, 32).requires_grad_(False); self.norm = nn.LayerNorm(32); self.head = nn.Linear(32, 4)
    def forward(self, i):
        x = self.emb(i); y = F.scaled_dot_product_attention(self.q(x)[:, None], self.k(x)[:, None], self.v(x)[:, None])[:, 0]
        return self.head(self.norm(x + y).mean(1))
net = Encoder(); low = [p for n, p in net.named_parameters() if ".A." in n or ".B." in n]
opt = torch.optim.SGD([{"params": low, "lr": 0.5}, {"params": net.head.parameters(), "lr": 0.1}], momentum=0.9)
for step in range(8):
    i = torch.randint(0, 60, (32, 10), generator=g); y = i[:, 0] % 4
    with torch.autocast("cpu", torch.bfloat16): out = net(i)
    loss = F.cross_entropy(out.float(), y); opt.zero_grad(); loss.backward(); opt.step()
    print(f"step {step} loss {loss.item():.4f}")
