"""Image classifier in bfloat16 autocast with batch norm, one-cycle rate and an EMA copy that is evaluated."""
import copy, torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(16); g = torch.Generator().manual_seed(9)
net = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 3))
ema = copy.deepcopy(net).requires_grad_(False); opt = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9); sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.05, total_steps=10)
def batch(n):
    y = torch.randint(0, 3, (n,), generator=g); x = 0.5 * torch.randn(n, 3, 12, 12, generator=g); x[range(n), y] += 0.4; return x, y
for step in range(10):
    x, y = batch(32)
    with torch.autocast("cpu", torch.bfloat16): out = net(x)
    loss = F.cross_entropy(out.float(), y); opt.zero_grad(); loss.backward(); opt.step(); sched.step()
    with torch.no_grad():
        for a, b in zip(ema.parameters(), net.parameters()): a.lerp_(b, 0.1)
        for a, b in zip(ema.buffers(), net.buffers()): a.copy_(b)
    print(f"step {step} loss {loss.item():.4f}")
ema.eval(); x, y = batch(300)
with torch.no_grad(): print(f"ema accuracy {(ema(x).argmax(1) == y).float().mean().item():.2f}")
