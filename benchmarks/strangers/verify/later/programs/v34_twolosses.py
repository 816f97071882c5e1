"""Two losses, two optimisers: a trunk with a classifier (SGD with momentum) and a separate head that reconstructs (RMSprop)."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(34); g = torch.Generator().manual_seed(13); M = torch.randn(10, 3, generator=g)
class Net(nn.Module):
    def __init__(self): super().__init__(); self.trunk = nn.Sequential(nn.Linear(10, 32), nn.ReLU()); self.classify = nn.Linear(32, 3); self.rebuild = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    def forward(self, x): h = self.trunk(x); return self.classify(h), self.rebuild(h.detach())
net = Net()
first = torch.optim.SGD([*net.trunk.parameters(), *net.classify.parameters()], 0.05, momentum=0.9, nesterov=True)
second = torch.optim.RMSprop(net.rebuild.parameters(), 2e-3)
for step in range(14):
    x = torch.randn(48, 10, generator=g); logits, back = net(x)
    a, b = F.cross_entropy(logits, (x @ M).argmax(1)), F.l1_loss(back, x)
    first.zero_grad(); second.zero_grad(); (a + b).backward(); first.step(); second.step()
    print(f"step {step} class {a.item():.6f} rebuild {b.item():.6f}")
