"""A character model with ALiBi-like biases and causal attention written by hand."""
import math, torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(1)
text = ("the quick brown fox jumps over the lazy dog while five wizards box. " * 40)
chars = sorted(set(text)); ids = torch.tensor([chars.index(c) for c in text])
T, B, D, H = 32, 8, 48, 4

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D); self.out = nn.Linear(D, D)
        self.register_buffer("future", torch.ones(T, T, dtype=torch.bool).tril(-1))
    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        score = q @ k.transpose(-1, -2) / math.sqrt(D // H)
        keep = ~self.future[:t, :t].t()
        score = torch.where(keep, score, torch.full_like(score, -1e4))
        mixed = score.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(b, t, D))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.att = Attention(); self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))
    def forward(self, x):
        x = x + self.att(self.n1(x)); return x + self.mlp(self.n2(x))

class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(len(chars), D); self.pos = nn.Embedding(T, D)
        self.blocks = nn.ModuleList([Block(), Block()]); self.norm = nn.LayerNorm(D); self.head = nn.Linear(D, len(chars))
    def forward(self, i):
        x = self.emb(i) + self.pos.weight[: i.shape[1]]
        for b in self.blocks: x = b(x)
        return self.head(self.norm(x))

m = LM(); opt = torch.optim.AdamW(m.parameters(), lr=3e-3)
g = torch.Generator().manual_seed(5)
for step in range(8):
    at = torch.randint(0, len(ids) - T - 1, (B,), generator=g)
    x = torch.stack([ids[a:a + T] for a in at]); y = torch.stack([ids[a + 1:a + T + 1] for a in at])
    loss = F.cross_entropy(m(x).flatten(0, 1), y.flatten())
    opt.zero_grad(set_to_none=True); loss.backward(); opt.step()
    print(step, round(loss.item(), 5))
