"""Beam search with a GRU decoder: three sentences, four beams each, the state follows its beam."""
import torch, torch.nn as nn
import accel  # noqa

torch.manual_seed(33); V, H, K, B = 30, 32, 4, 3
class Decoder(nn.Module):
    def __init__(self): super().__init__(); self.emb = nn.Embedding(V, H); self.rnn = nn.GRU(H, H, batch_first=True); self.out = nn.Linear(H, V)
    def forward(self, token, h):
        y, h = self.rnn(self.emb(token)[:, None], h); return self.out(y[:, 0]) * 4, h
net = Decoder().eval()

@torch.no_grad()
def search(h, steps=10):
    h = h.repeat_interleave(K, 1); token = torch.ones(B * K, dtype=torch.long); text = torch.empty(B * K, 0, dtype=torch.long)
    score = torch.full((B, K), -1e9); score[:, 0] = 0
    for _ in range(steps):
        logits, h = net(token, h)
        total = score[..., None] + logits.log_softmax(-1).view(B, K, V)
        score, flat = total.flatten(1).topk(K, -1)
        pick = torch.stack([flat // V + torch.arange(B)[:, None] * K, flat % V], -1).flatten(0, 1)      # beam, token
        token = pick[:, 1].contiguous()
        h = h.index_select(1, pick[:, 0])
        text = torch.cat([text[pick[:, 0]], token[:, None]], 1)
    return text.view(B, K, -1), score

for round_ in range(2):
    text, score = search(torch.randn(1, B, H))
    for b in range(B): print(round_, b, f"{score[b, 0].item():.4f}", " ".join(map(str, text[b, 0].tolist())))
