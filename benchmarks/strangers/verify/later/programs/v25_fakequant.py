"""Quantisation-aware fine-tuning: a network trained in float gets 4-bit fake quantisation of activations with fixed ranges."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(25); g = torch.Generator().manual_seed(6); W = torch.randn(16, 4, generator=g)
def batch(n=64):
    x = torch.randn(n, 16, generator=g); return x, (x @ W).argmax(1)

class FakeQuant(nn.Module):
    """Rounds to 4 bits between -top and top; gradients pass inside of the range."""
    def __init__(self, top): super().__init__(); self.top = top
    def forward(self, x): return torch.fake_quantize_per_tensor_affine(x, self.top / 7, 0, -8, 7)

class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.fc1, self.fc2, self.fc3 = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.quant1, self.quant2 = FakeQuant(1.0), FakeQuant(0.8)
    def forward(self, x):
        x = torch.tanh(self.fc1(x) * 2); x = self.quant1(x * 1.2)
        x = self.quant2(F.leaky_relu(self.fc2(x), 0.2)); return self.fc3(x)

net = Net(); opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
for step in range(10):
    x, y = batch(); loss = F.cross_entropy(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
    print(f"step {step} loss {loss.item():.6f}")
x, y = batch(500)
with torch.no_grad(): print(f"accuracy {(net(x).argmax(1) == y).float().mean().item():.3f}")
