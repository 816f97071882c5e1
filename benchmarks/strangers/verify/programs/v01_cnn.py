"""Shapes classifier: a small CNN on drawn discs and bars."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(3)

def draw(n, g):
    x = torch.rand(n, 1, 28, 28, generator=g) * 0.2
    y = torch.randint(0, 3, (n,), generator=g)
    for i in range(n):
        r, c = torch.randint(4, 20, (2,), generator=g).tolist()
        if y[i] == 0: x[i, 0, r:r + 5, c:c + 5] += 0.8
        elif y[i] == 1: x[i, 0, r, :] += 0.8
        else: x[i, 0, :, c] += 0.8
    return x, y

class Block(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv = nn.Conv2d(i, o, 3, padding=1); self.bn = nn.BatchNorm2d(o)
    def forward(self, x): return F.relu(self.bn(self.conv(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.b1, self.b2 = Block(1, 12), Block(12, 24)
        self.pool = nn.MaxPool2d(2)
        self.grid = nn.AdaptiveAvgPool2d((3, 3))
        self.head = nn.Linear(24 * 9, 3)
    def forward(self, x):
        x = self.pool(self.b1(x))
        x = self.pool(self.b2(x))       # 24 x 7 x 7
        return self.head(self.grid(x).flatten(1))

g = torch.Generator().manual_seed(11)
X, Y = draw(256, g)
net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for step in range(8):
    i = slice(step * 32, step * 32 + 32)
    loss = F.cross_entropy(net(X[i]), Y[i])
    opt.zero_grad(); loss.backward(); opt.step()
    print(f"step {step} loss {loss.item():.5f}")
