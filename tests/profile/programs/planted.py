"""A training loop with operators in it that chips lack; the marks name what is planted where."""

import torch
import torch.nn.functional as F

torch.manual_seed(0)
layer = torch.nn.Linear(8, 8)
bag = torch.nn.EmbeddingBag(10, 8, mode="sum")
optimizer = torch.optim.SGD([*layer.parameters(), *bag.parameters()], lr=1e-3)
zero = torch.zeros(4, 8, dtype=torch.long)

for step in range(5):
    x = torch.randn(4, 8)
    y = layer(x)
    loss = y.mean()
    loss = loss + torch.lgamma(y.abs() + 1).sum()  # plant: aten::lgamma cpu_fallback float32
    loss = loss + torch.linalg.eigh(x.T @ x)[0].sum()  # plant: aten::_linalg_eigh cpu_fallback float32
    loss = loss + F.huber_loss(y, x)  # plant: aten::huber_loss cpu_fallback float32
    loss = loss + bag(torch.randint(0, 10, (4, 3))).sum()  # plant: aten::_embedding_bag_backward cpu_fallback float32
    loss = loss + torch.zeros(4, 8).scatter(0, zero, x, reduce="add").sum()  # plant: aten::scatter.reduce cpu_fallback float32
    double = x.double()
    loss = loss + (double @ double.T).float().sum()  # plant: aten::mm missing float64
    loss = loss + torch.fmax(y, x).sum()  # plant: aten::fmax cpu_fallback float32
    loss = loss + torch.copysign(y, x).sum()  # plant: aten::copysign.Tensor cpu_fallback float32
    loss = loss + torch.hypot(y, x).sum()  # plant: aten::hypot cpu_fallback float32
    loss = loss + torch.mode(y)[0].sum()  # plant: aten::mode cpu_fallback float32
    loss = loss + F.multi_margin_loss(y, zero[:, 0])  # plant: aten::multi_margin_loss cpu_fallback float32
    loss = loss + torch.logcumsumexp(y, 0).sum()  # plant: aten::logcumsumexp cpu_fallback float32
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
