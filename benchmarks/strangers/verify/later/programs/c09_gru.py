"""Text classifier with an embedding and a GRU, truncated backpropagation with the state carried over."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(9); g = torch.Generator().manual_seed(3)
text = torch.tensor([ord(c) % 32 for c in "she sells sea shells on the sea shore, the shells she sells are sea shells for sure. " * 20])
class CharRNN(nn.Module):
    def __init__(self): super().__init__(); self.emb = nn.Embedding(32, 24); self.rnn = nn.GRU(24, 40, batch_first=True); self.out = nn.Linear(40, 32)
    def forward(self, i, h): y, h = self.rnn(self.emb(i), h); return self.out(y), h
net = CharRNN(); opt = torch.optim.Adam(net.parameters(), 4e-3); lanes = text[: 8 * (len(text) // 8)].view(8, -1); h = torch.zeros(1, 8, 40)
for step in range(9):
    x, y = lanes[:, step * 20: step * 20 + 20], lanes[:, step * 20 + 1: step * 20 + 21]
    out, h = net(x, h.detach()); loss = F.cross_entropy(out.flatten(0, 1), y.flatten())
    opt.zero_grad(); loss.backward(); nn.utils.clip_grad_norm_(net.parameters(), 1.0); opt.step()
    print(f"step {step} loss {loss.item():.5f}")
