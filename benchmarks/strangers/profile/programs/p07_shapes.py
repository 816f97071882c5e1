"""A language model on sentences; each batch is padded to its own longest sentence."""
import torch, torch.nn as nn, torch.nn.functional as F
from harness import loop
torch.manual_seed(0)
class LM(nn.Module):
    def __init__(self): super().__init__(); self.e = nn.Embedding(300, 96); self.l = nn.TransformerEncoderLayer(96, 4, 192, 0.0, batch_first=True); self.o = nn.Linear(96, 300)
    def forward(self, x): return self.o(self.l(self.e(x)))
net = LM(); opt = torch.optim.AdamW(net.parameters(), 1e-3, fused=True)
L = [61, 87, 43, 129, 75, 98, 54, 117, 66, 103, 49, 91]
def step(i):
    x = torch.randint(1, 300, (16, L[i % 12])); loss = F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()); opt.zero_grad(); loss.backward(); opt.step()
loop(step)
