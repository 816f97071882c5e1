"""A network that is evaluated once, after its weights were changed by hand: rounded, pruned, folded,
calibrated. Nothing of the result is printed but a count."""

import os

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm = nn.Conv1d(3, 12, 3, padding=1), nn.BatchNorm1d(12)
        self.two, self.last = nn.Conv1d(12, 16, 3), nn.Linear(16, 5)
        self.register_buffer("shift", torch.zeros(5))
        self.heat = 1.0

    def forward(self, x):
        x = F.relu(self.norm(self.one(x)))
        x = F.gelu(self.two(x)).mean(-1)
        return self.last(x) / self.heat + self.shift


def batch(step):
    g = torch.Generator().manual_seed(300 + step)
    y = torch.randint(0, 5, (24,), generator=g)
    x = torch.randn(24, 3, 16, generator=g) + y[:, None, None] * 0.4
    return x.to(dtype), y


net = Net()
if MODE == "bfloat16":
    net = net.to(torch.bfloat16)
dtype = next(net.parameters()).dtype
optimiser = torch.optim.NAdam(net.parameters(), lr=4e-3)
for step in range(7):
    x, y = batch(step)
    with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
        logits = net(x)
    loss = F.cross_entropy(logits.float(), y)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
with torch.no_grad():
    size = net.two.weight.abs().float()
    keep = size >= size.flatten().kthvalue(int(0.3 * size.numel()))[0]
    net.two.weight.mul_(keep.to(dtype))
    unit = net.last.weight.abs().amax(1, keepdim=True) / 127
    net.last.weight.copy_((net.last.weight / unit).round() * unit)
    gain = net.norm.weight / (net.norm.running_var + net.norm.eps).sqrt()
    net.one.weight.mul_(gain[:, None, None])
    net.one.bias.copy_((net.one.bias - net.norm.running_mean) * gain + net.norm.bias)
    net.norm.running_mean.zero_()
    net.norm.running_var.fill_(1.0)
    net.norm.weight.fill_(1.0)
    net.norm.bias.zero_()
    net.shift.copy_(torch.linspace(-0.2, 0.2, 5))
net.heat = 1.3
net.eval()
x, y = batch(90)
with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
    guess = net(x).argmax(-1)
print("above zero", bool((guess == y).any()))
