"""Hand-written Adam on a small MLP; the accelerator's addcdiv and rsqrt are written with other, equal formulas."""
import torch, torch.nn as nn
import accel  # noqa

torch.manual_seed(6)
net = nn.Sequential(nn.Linear(12, 48), nn.Mish(), nn.LayerNorm(48), nn.Linear(48, 2))
P = list(net.parameters()); M = [torch.zeros_like(p) for p in P]; S = [torch.zeros_like(p) for p in P]
g = torch.Generator().manual_seed(2)
for t in range(1, 10):
    x = torch.randn(40, 12, generator=g); y = torch.stack([x[:, :3].sum(1), x[:, 3] * x[:, 4]], 1)
    loss = nn.functional.smooth_l1_loss(net(x), y)
    grads = torch.autograd.grad(loss, P)
    with torch.no_grad():
        for p, d, m, s in zip(P, grads, M, S):
            m.mul_(0.9).add_(d, alpha=0.1); s.mul_(0.99).addcmul_(d, d, value=0.01)
            p.addcdiv_(m / (1 - 0.9 ** t), (s / (1 - 0.99 ** t)).sqrt().add_(1e-8), value=-3e-3)
    print(f"{t} {loss.item():.6f}")
