"""An encoder in the manner of a hub model (eager attention with an additive padding mask) learns to classify sentences."""
import math, torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(17)
class Config: vocab, hidden, heads, layers, inner, length, labels = 120, 32, 4, 2, 64, 13, 3

class SelfAttention(nn.Module):
    def __init__(self, c):
        super().__init__(); self.n = c.heads; self.query, self.key, self.value = (nn.Linear(c.hidden, c.hidden) for _ in range(3))
    def split(self, x): return x.view(*x.shape[:2], self.n, -1).transpose(1, 2)
    def forward(self, x, mask):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        p = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask).softmax(-1)
        return (p @ v).transpose(1, 2).reshape(x.shape)

class Layer(nn.Module):
    def __init__(self, c):
        super().__init__(); self.attention = SelfAttention(c); self.dense = nn.Linear(c.hidden, c.hidden); self.norm1, self.norm2 = nn.LayerNorm(c.hidden), nn.LayerNorm(c.hidden)
        self.up, self.down = nn.Linear(c.hidden, c.inner), nn.Linear(c.inner, c.hidden)
    def forward(self, x, mask):
        x = self.norm1(x + self.dense(self.attention(x, mask)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))

class Classifier(nn.Module):
    def __init__(self, c):
        super().__init__(); self.words, self.positions = nn.Embedding(c.vocab, c.hidden, padding_idx=0), nn.Embedding(c.length, c.hidden)
        self.layer = nn.ModuleList([Layer(c) for _ in range(c.layers)]); self.pooler, self.classifier = nn.Linear(c.hidden, c.hidden), nn.Linear(c.hidden, c.labels)
    def forward(self, input_ids, attention_mask):
        mask = (1.0 - attention_mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
        x = self.words(input_ids) + self.positions.weight[None, : input_ids.shape[1]]
        for layer in self.layer: x = layer(x, mask)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))

model = Classifier(Config); opt = torch.optim.AdamW(model.parameters(), 1e-3); g = torch.Generator().manual_seed(3)
for step in range(8):
    ids = torch.randint(1, Config.vocab, (16, Config.length), generator=g); n = torch.randint(5, 18, (16,), generator=g).clamp_max(Config.length)
    mask = (torch.arange(Config.length)[None] < n[:, None]).long(); ids = ids * mask; y = ids.sum(1) % 3
    loss = F.cross_entropy(model(input_ids=ids, attention_mask=mask), y)
    opt.zero_grad(); loss.backward(); nn.utils.clip_grad_norm_(model.parameters(), 1.0); opt.step()
    print(f"step {step} loss {loss.item():.6f}")
