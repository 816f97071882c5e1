"""A regression whose checkpoints, copies and averages are loaded into new models at its end."""

import copy
import os

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")
RATE = float(os.environ.get("RATE", "0.1"))


def made():
    net = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
    return net.to(torch.bfloat16) if MODE == "bfloat16" else net


def batch(step):
    g = torch.Generator().manual_seed(31 + step)
    x = torch.randn(16, 6, generator=g)
    return x, x.sin().sum(1, keepdim=True)


def forward(net, x):
    with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
        return net(x.to(next(net.parameters()).dtype)).float()


student = made()
optimiser = torch.optim.SGD(student.parameters(), lr=RATE, momentum=0.5)
average = {name: w.detach().clone() for name, w in student.state_dict().items()}
kept = {}
for step in range(12):
    x, y = batch(step)
    loss = F.mse_loss(forward(student, x), y)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    for name, w in student.state_dict().items():
        average[name] = average[name] + 0.1 * (w.detach() - average[name])
    if step % 3 == 2:
        kept[step] = copy.deepcopy(student.state_dict())

x, y = batch(100)
with torch.no_grad():
    last = made()
    last.load_state_dict(kept[11])
    print("last", F.mse_loss(forward(last, x), y).item())
    early = made()
    early.load_state_dict(kept[5])
    print("early", F.mse_loss(forward(early, x), y).item())
    student.load_state_dict(kept[8])
    print("again", F.mse_loss(forward(student, x), y).item())
    print("part", forward(student[0], x[:4]).sum().item())  # a part, with fewer rows than in training
    smooth = made()
    smooth.load_state_dict(average)
    print("smooth", F.mse_loss(forward(smooth, x), y).item())
