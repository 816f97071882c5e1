"""An LSTM over noisy sums with warm restarts of the learning rate (every 5 steps)."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(16)
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.rnn = nn.LSTM(2, 24, batch_first=True); self.out = nn.Linear(24, 1)
    def forward(self, x): return self.out(self.rnn(x)[0][:, -1]).squeeze(-1)
net = Net(); opt = torch.optim.SGD(net.parameters(), 0.3, momentum=0.9)
sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=5, eta_min=0.01)
g = torch.Generator().manual_seed(1)
for step in range(14):
    x = torch.randn(32, 12, 2, generator=g); y = (x[..., 0] * (x[..., 1] > 0)).sum(1)
    loss = F.mse_loss(net(x), y)
    opt.zero_grad(); loss.backward(); nn.utils.clip_grad_norm_(net.parameters(), 1.0); opt.step(); sched.step()
    print(f"step {step} loss {loss.item():.5f}")
