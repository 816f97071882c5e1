"""A graph network for classes of nodes; messages are added up by scatter_add."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)
device = "cuda" if torch.cuda.is_available() else "cpu"
NODES, EDGES, CLASSES = 90, 400, 4


class GraphConv(nn.Module):
    """Adds the weighted neighbours' features, both ends' degrees under a root."""

    def __init__(self, wide_in, wide_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(wide_out, wide_in) / wide_in ** 0.5)
        self.bias = nn.Parameter(torch.zeros(wide_out))

    def forward(self, x, source, target, strength):
        ones = torch.ones(source.shape[0], device=x.device)
        degree = torch.zeros(x.shape[0], device=x.device).index_add(0, target, ones) + 1
        scale = degree.rsqrt()
        mixed = (self.weight @ x.t()).t()
        factor = scale[source] * scale[target] * strength
        message = (mixed.t()[:, source] * factor).t()
        index = target[:, None].expand(-1, mixed.shape[1])
        gathered = torch.zeros_like(mixed).scatter_add(0, index, message)
        return gathered + mixed * scale.pow(2)[:, None] + self.bias


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = GraphConv(10, 24)
        self.norm = nn.LayerNorm(24)
        self.second = GraphConv(24, CLASSES)

    def forward(self, x, source, target, strength):
        x = F.elu(self.norm(self.first(x, source, target, strength)))
        return self.second(x, source, target, strength)


def draw_edges(generator):
    """A part of the graph for one step, sorted by its target."""
    pick = torch.randperm(EDGES, generator=generator)[:300]
    source, target, strength = all_source[pick], all_target[pick], all_strength[pick]
    order = torch.argsort(target, stable=True)
    return source[order], target[order], strength[order]


features = torch.randn(NODES, 10)
all_source = torch.randint(0, NODES, (EDGES,))
all_target = torch.randint(0, NODES, (EDGES,))
all_strength = torch.rand(EDGES) + 0.2
labels = torch.randint(0, CLASSES, (NODES,))
model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)
generator = torch.Generator().manual_seed(3)
x, y = features.to(device), labels.to(device)

for step in range(5):
    source, target, strength = (part.to(device) for part in draw_edges(generator))
    scores = model(x, source, target, strength)
    loss = F.cross_entropy(scores[:60], y[:60])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}", flush=True)

with torch.no_grad():
    scores = model(x, *(part.to(device) for part in draw_edges(generator)))
print(f"rest {F.cross_entropy(scores[60:], y[60:]).item():.6f}")
