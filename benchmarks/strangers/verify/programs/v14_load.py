"""Writes a checkpoint if there is none, loads it, scores a batch and fine-tunes for a few steps."""
import os, tempfile, torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

class Block(nn.Module):
    def __init__(self, d=32):
        super().__init__(); self.norm = nn.LayerNorm(d); self.up = nn.Linear(d, 2 * d); self.down = nn.Linear(2 * d, d)
    def forward(self, x): return x + self.down(F.gelu(self.up(self.norm(x))))
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.inp = nn.Linear(8, 32); self.blocks = nn.ModuleList([Block() for _ in range(3)]); self.out = nn.Linear(32, 4)
    def forward(self, x):
        x = self.inp(x)
        for b in self.blocks: x = b(x)
        return self.out(x)

path = os.path.join(tempfile.gettempdir(), "v14_pretrained.pt")
torch.manual_seed(1234); made = Net()
with torch.no_grad():
    for n, p in made.named_parameters():
        if "norm.weight" in n: p.uniform_(0.6, 1.4)
torch.save(made.state_dict(), path)

torch.manual_seed(1)
net = Net(); net.load_state_dict(torch.load(path, map_location="cpu"))
x = torch.randn(64, 8); y = x[:, :4].argmax(-1)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(6):
    loss = F.cross_entropy(net(x), y); opt.zero_grad(); loss.backward(); opt.step()
    print(f"step {step} loss {loss.item():.5f}")
