"""A regression network with cosine learning rate; an exponential moving average of its weights is evaluated at the end."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
import accel  # noqa

torch.manual_seed(27); g = torch.Generator().manual_seed(8)
net = nn.Sequential(nn.Linear(6, 40), nn.SiLU(), nn.Linear(40, 40), nn.SiLU(), nn.Linear(40, 1))
ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.99))
opt = torch.optim.AdamW(net.parameters(), 4e-3); sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=30)
def batch(n):
    x = torch.rand(n, 6, generator=g) * 2 - 1; return x, (torch.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2])[:, None]
for step in range(30):
    x, y = batch(64); loss = F.mse_loss(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step(); sched.step(); ema.update_parameters(net)
    if step % 5 == 0: print(f"step {step} loss {loss.item():.6f} lr {sched.get_last_lr()[0]:.6f}")
x, y = batch(400)
with torch.no_grad(): print(f"mse {F.mse_loss(net(x), y).item():.6f} ema {F.mse_loss(ema(x), y).item():.6f}")
