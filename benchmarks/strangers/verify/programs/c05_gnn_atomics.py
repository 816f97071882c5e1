"""Graph attention: scores are normalised over the edges of a node with scatter_reduce and scatter_add."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(12)
N = 150
src = torch.cat([torch.arange(N), torch.randint(0, N, (2 * N,))]); dst = torch.cat([(torch.arange(N) + 1) % N, torch.randint(0, N, (2 * N,))])
x = torch.randn(N, 16); y = (x[:, :4].sum(1) > 0).long() + (x[(torch.arange(N) - 1) % N, 0] > 0).long()

class Conv(nn.Module):
    def __init__(self, i, o):
        super().__init__(); self.own, self.near, self.att = nn.Linear(i, o), nn.Linear(i, o, bias=False), nn.Linear(2 * o, 1)
    def forward(self, x):
        h = self.near(x); e = F.leaky_relu(self.att(torch.cat([h[src], h[dst]], 1)).squeeze(1), 0.2)
        top = torch.full((N,), -1e30).scatter_reduce(0, dst, e.detach(), "amax")
        w = (e - top[dst]).exp(); w = w / torch.zeros(N).scatter_add(0, dst, w)[dst]
        return self.own(x) + torch.zeros(N, h.shape[1]).scatter_add(0, dst[:, None].expand(-1, h.shape[1]), w[:, None] * h[src])

class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.conv1, self.conv2 = Conv(16, 32), Conv(32, 3)
    def forward(self, x): return self.conv2(F.elu(self.conv1(x)))

net = Net(); opt = torch.optim.Adam(net.parameters(), 1e-2)
for epoch in range(8):
    out = net(x); loss = F.cross_entropy(out[:100], y[:100])
    opt.zero_grad(); loss.backward(); opt.step()
    acc = (out[100:].argmax(-1) == y[100:]).float().mean()
    print(f"epoch {epoch} loss {loss.item():.4f} test {acc.item():.3f}")
