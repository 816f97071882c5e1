"""Regression in mixed precision; the update is written by hand, the loss is scaled by a GradScaler."""
import torch, torch.nn as nn
import accel  # noqa

torch.manual_seed(8)
net = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 1))
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
opt = torch.optim.SGD(net.parameters(), lr=1.0)         # only for the scaler's book-keeping
moments = [torch.zeros_like(p) for p in net.parameters()]
g = torch.Generator().manual_seed(3)
X = torch.randn(512, 10, generator=g); Y = (X[:, :1] * X[:, 1:2]).tanh() + 0.1 * X[:, 2:3]
for step in range(8):
    i = torch.randperm(512, generator=g)[:64]
    with torch.autocast("cpu", torch.bfloat16):
        out = net(X[i])
    loss = (out.float() - Y[i]).pow(2).mean()
    for p in net.parameters(): p.grad = None
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    with torch.no_grad():
        for p, m in zip(net.parameters(), moments):
            m.mul_(0.9).add_(p.grad)
            p.sub_(0.05 * m)
    scaler.update()
    print(f"{step} loss {loss.item():.5f} scale {scaler.get_scale():.0f}")
