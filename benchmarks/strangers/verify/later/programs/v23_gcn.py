"""A graph network with lists of neighbours (some nodes have none), sum aggregation and a readout per node."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(23); N, D = 40, 12; g = torch.Generator().manual_seed(2)
edges = torch.randint(0, N, (2, 70), generator=g); edges = edges[:, edges[0] != edges[1]]
lists = [edges[1][edges[0] == i].unique() for i in range(N)]
x = torch.randn(N, D, generator=g); y = (x[:, 0] + torch.stack([x[l, 1].sum() for l in lists]) > 0).long()
train = torch.arange(N) < 30

class SumConv(nn.Module):
    def __init__(self, i, o): super().__init__(); self.own, self.other = nn.Linear(i, o), nn.Linear(i, o, bias=False)
    def forward(self, h):
        around = torch.stack([h[l].sum(0) for l in lists])
        return self.own(h) + self.other(around)

class GCN(nn.Module):
    def __init__(self): super().__init__(); self.conv1, self.conv2, self.head = SumConv(D, 24), SumConv(24, 24), nn.Linear(24, 2)
    def forward(self, h): return self.head(F.relu(self.conv2(F.relu(self.conv1(h)))))

net = GCN(); opt = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=5e-4)
for step in range(10):
    out = net(x); loss = F.cross_entropy(out[train], y[train])
    opt.zero_grad(); loss.backward(); opt.step()
    print(f"step {step} loss {loss.item():.6f} test {(out[~train].argmax(1) == y[~train]).float().mean().item():.2f}")
