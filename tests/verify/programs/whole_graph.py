"""Nodes of a graph: messages by index_add, sampled neighbours, sparse and dense optimisers beside each
other, LBFGS for the last layer, a mixture of losses with learnt weights, ranks of links at the end."""

import os

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")
DTYPE = torch.bfloat16 if MODE == "bfloat16" else torch.float32
NODES, D = 60, 12
g = torch.Generator().manual_seed(2)
kind = torch.randint(0, 3, (NODES,), generator=g)
edges = torch.randint(0, NODES, (2, 500), generator=g)
edges = edges[:, (kind[edges[0]] == kind[edges[1]]) | (torch.rand(500, generator=g) < 0.2)]
edges = edges[:, edges[0] != edges[1]].unique(dim=1)
feature = torch.randn(NODES, 6, generator=g) + F.one_hot(kind, 6)
test, edges = edges[:, ::10], edges[:, torch.arange(edges.shape[1]) % 10 != 0]


class Layer(nn.Module):
    def __init__(self, given, made):
        super().__init__()
        self.own, self.near = nn.Linear(given, made), nn.Linear(given, made, bias=False)

    def forward(self, x, edges, weight):
        out = torch.zeros(len(x), x.shape[1], dtype=x.dtype).index_add(0, edges[1], x[edges[0]] * weight[:, None].to(x.dtype))
        return self.own(x) + self.near(out)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = Layer(6 + D, 16), Layer(16, 16), nn.Linear(16, 3)
        self.drop = nn.Dropout(0.2)

    def forward(self, x, edges, weight):
        x = F.elu(self.one(x, edges, weight))
        x = self.two(self.drop(x), edges, weight)
        return self.head(F.elu(x)), x


def by_degree(edges):
    degree = torch.bincount(torch.cat([edges[0], edges[1]]), minlength=NODES).clamp_min(1).float()
    return (degree[edges[0]] * degree[edges[1]]).rsqrt()


net, table = Net().to(DTYPE), nn.Embedding(NODES, D, sparse=True)
balance = nn.Parameter(torch.zeros(2))
dense = torch.optim.Adamax([*net.parameters(), balance], lr=5e-3)
rows = torch.optim.SparseAdam(table.parameters(), lr=1e-2)
steady = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8))
warm = torch.optim.lr_scheduler.LinearLR(dense, 0.2, 1.0, 4)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(dense, 8, eta_min=1e-4)
rate = torch.optim.lr_scheduler.SequentialLR(dense, [warm, cosine], [4])
known = torch.rand(NODES, generator=g) < 0.5
for step in range(12):
    keep = torch.rand(edges.shape[1], generator=g) < 0.8
    part = edges[:, keep]
    x = torch.cat([feature, table(torch.arange(NODES))], 1)
    with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
        logits, hidden = net(x.to(DTYPE), part, by_degree(part))
    logits, hidden = logits.float(), hidden.float()
    nodes = F.cross_entropy(logits[known], kind[known])
    false = torch.randint(0, NODES, (2, part.shape[1]), generator=g)
    real = (hidden[part[0]] * hidden[part[1]]).sum(-1)
    fake = (hidden[false[0]] * hidden[false[1]]).sum(-1)
    links = -F.logsigmoid(real).mean() - F.logsigmoid(-fake).mean()
    smooth = (logits[part[0]].softmax(-1) - logits[part[1]].softmax(-1)).pow(2).sum(-1).mean()
    loss = (-balance).exp()[0] * nodes + (-balance).exp()[1] * links + balance.sum() + 0.1 * smooth
    dense.zero_grad()
    rows.zero_grad()
    loss.backward()
    dense.step()
    rows.step()
    rate.step()
    if step >= 4:
        steady.update_parameters(net)
head = nn.Linear(16, 3)
steady.eval()
with torch.no_grad():
    x = torch.cat([feature, table.weight], 1)
    _, fixed = steady(x.to(DTYPE), edges, by_degree(edges))
    fixed = fixed.float()
    fixed = (fixed - fixed[known].mean(0)) / (fixed[known].std(0) + 1e-5)
last = torch.optim.LBFGS(head.parameters(), lr=0.5, max_iter=4, history_size=3)
for _ in range(3):

    def closure():
        last.zero_grad()
        loss = F.cross_entropy(head(fixed[known]), kind[known]) + 1e-2 * head.weight.square().sum()
        loss.backward()
        return loss

    last.step(closure)
with torch.no_grad():
    guess = head(fixed).softmax(-1)
    brier = (guess[~known] - F.one_hot(kind[~known], 3)).square().sum(-1).mean()
    good = (fixed[test[0]] * fixed[test[1]]).sum(-1)
    other = fixed[test[0]] @ fixed.T
    other[torch.arange(len(good)), test[0]] = -1e9
    place = (other > good[:, None]).sum(-1) + 1
print("brier", round(brier.item(), 5), "right", round((guess.argmax(-1) == kind)[~known].float().mean().item(), 4))
print("mrr", round((1 / place.float()).mean().item(), 5), "hits", round((place <= 10).float().mean().item(), 4))
