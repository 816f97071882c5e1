"""An image classifier's whole program: mixed labels, scaled gradients, averaged weights, warm-up."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.c2, self.b2 = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 7)

    def forward(self, x):
        x = F.relu(self.b1(self.c1(x)))
        x = F.relu(self.b2(self.c2(x)))
        return self.head(x.mean((2, 3)))


def batch(step):
    g = torch.Generator().manual_seed(77 + step)
    x = torch.rand(8, 3, 10, 10, generator=g)
    return (x - 0.5) / 0.25, torch.randint(0, 7, (8,), generator=g)


net = Net()
if MODE == "bfloat16":
    net = net.to(torch.bfloat16)
average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [5], gamma=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=4)
for step in range(8):
    net.train()
    x, y = batch(step)
    share, order = 0.7, torch.arange(8).flip(0)
    mixed = share * x + (1 - share) * x[order]
    with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
        out = net(mixed.to(next(net.parameters()).dtype))
    target = share * F.one_hot(y, 7).float() + (1 - share) * F.one_hot(y[order], 7).float()
    p = F.log_softmax(out.float(), -1)
    loss = -(target * p).sum(-1).mean()
    penalty = sum(w.float().abs().sum() for w in net.head.parameters())
    loss = loss + 1e-4 * penalty
    scaler.scale(loss).backward()
    scaler.unscale_(optimiser)
    for w in net.parameters():
        w.grad.clamp_(-0.2, 0.2)
    scaler.step(optimiser)
    scaler.update()
    optimiser.zero_grad()
    schedule.step()
    average.update_parameters(net)
net.eval()
with torch.no_grad():
    x, y = batch(500)
    crops = torch.cat([x, x.flip(-1)])
    votes = net(crops.to(next(net.parameters()).dtype)).float().softmax(-1)
    votes = (votes[:8] + votes[8:]) / 2
    print("top1", (votes.argmax(-1) == y).float().mean().item(), "sum", f"{votes.max(-1).values.sum():.5f}")
