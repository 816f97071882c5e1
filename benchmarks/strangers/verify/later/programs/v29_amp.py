"""A language model with a wide vocabulary under autocast to bfloat16 (master weights in float32)."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(29); V, D = 600, 32; g = torch.Generator().manual_seed(10)
class LM(nn.Module):
    def __init__(self):
        super().__init__(); self.emb = nn.Embedding(V, D); self.mix = nn.Sequential(nn.Linear(4 * D, 64), nn.GELU(), nn.Linear(64, D)); self.head = nn.Linear(D, V)
    def forward(self, i): return self.head(self.mix(self.emb(i).flatten(1)))
net = LM(); opt = torch.optim.AdamW(net.parameters(), 2e-3)
for step in range(8):
    ctx = torch.randint(0, V, (32, 4), generator=g); y = (ctx[:, 0] + ctx[:, 3]) % V
    with torch.autocast("cpu", torch.bfloat16):
        logits = net(ctx)
        loss = F.cross_entropy(logits, y)
    opt.zero_grad(); loss.backward(); opt.step()
    print(f"step {step} loss {loss.item():.5f}")
