"""Text from a small recurrent language model: top-p sampling with a repetition penalty and a seeded generator."""
import torch, torch.nn as nn
import accel  # noqa

torch.manual_seed(77)
V = 120
class LM(nn.Module):
    def __init__(self):
        super().__init__(); self.emb = nn.Embedding(V, 48); self.rnn = nn.GRU(48, 64, 2, batch_first=True); self.head = nn.Linear(64, V)
        nn.init.normal_(self.head.weight, std=0.6)
    def forward(self, ids): return self.head(self.rnn(self.emb(ids))[0][:, -1])

    @torch.no_grad()
    def generate(self, ids, n, temperature=0.9, top_p=0.9, penalty=1.2, generator=None):
        for _ in range(n):
            s = self(ids)
            seen = torch.gather(s, 1, ids)
            s = s.scatter(1, ids, torch.where(seen < 0, seen * penalty, seen / penalty)) / temperature
            v, order = s.sort(-1, descending=True)
            p = v.softmax(-1)
            p = p.masked_fill(p.cumsum(-1) - p > top_p, 0.0)
            pick = torch.multinomial(p / p.sum(-1, keepdim=True), 1, generator=generator)
            ids = torch.cat([ids, order.gather(1, pick)], 1)
        return ids

m = LM().eval(); g = torch.Generator().manual_seed(40)
for prompt in ([5, 17, 33, 8], [110, 4, 4, 90]):
    print("tokens", m.generate(torch.tensor([prompt]), 20, generator=g)[0, 4:].tolist())
