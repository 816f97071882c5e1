"""Contrastive learning with a queue of keys and a slow copy: two augmented views, a loss with its own
backward pass, a ring written in place, a rate by cosine, a classifier by neighbours at the end."""

import copy
import math
import os

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")
DTYPE = torch.bfloat16 if MODE == "bfloat16" else torch.float32
SIZE, STEPS, TAU = 24, 14, 0.2


def view(images, g):
    n = len(images)
    flip = torch.rand(n, generator=g) < 0.5
    images = torch.where(flip[:, None, None, None], images.flip(-1), images)
    top, left = torch.randint(0, 5, (2, n), generator=g).tolist()
    images = F.pad(images, (2, 2, 2, 2), mode="reflect")
    images = torch.stack([im[:, t : t + 12, s : s + 12] for im, t, s in zip(images, top, left, strict=True)])
    light = 1 + 0.4 * (torch.rand(n, 1, 1, 1, generator=g) - 0.5)
    images = ((images - images.mean((1, 2, 3), keepdim=True)) * light + images.mean((1, 2, 3), keepdim=True)).clamp(0, 1)
    grey = images.mean(1, keepdim=True).expand_as(images)
    images = torch.where(torch.rand(n, 1, 1, 1, generator=g) < 0.2, grey, images)
    return (images - 0.45) / 0.225


class InfoNCE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits):
        share = logits.softmax(-1)
        ctx.save_for_backward(share)
        return -(share[:, 0] + 1e-12).log().mean()

    @staticmethod
    def backward(ctx, slope):
        (share,) = ctx.saved_tensors
        back = share.clone()
        back[:, 0] -= 1
        return back * slope / len(share)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.out = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.Linear(16, 12)

    def forward(self, x):
        x = F.relu(self.bn(self.conv1(x)))
        return self.out(F.relu(self.conv2(x)).mean((2, 3)))


g = torch.Generator().manual_seed(6)
labels = torch.arange(40) % 4
pictures = (0.25 * torch.rand(40, 3, 12, 12, generator=g) + labels[:, None, None, None] / 6 + 0.1).clamp(0, 1)
net = Net().to(DTYPE)
slow = copy.deepcopy(net).requires_grad_(False)
queue = F.normalize(torch.randn(SIZE, 12, generator=g), dim=1)
pointer = 0
optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3, nesterov=True)
for step in range(STEPS):
    rate = 0.1 * 0.5 * (1 + math.cos(math.pi * step / STEPS))
    optimiser.param_groups[0]["lr"] = rate
    rows = torch.randperm(40, generator=g)[:8]
    one, two = view(pictures[rows], g).to(DTYPE), view(pictures[rows], g).to(DTYPE)
    with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
        asked = net(one)
        with torch.no_grad():
            m = 1 - (1 - 0.9) * (math.cos(math.pi * step / STEPS) + 1) / 2
            for a, b in zip(slow.parameters(), net.parameters(), strict=True):
                a.mul_(m).add_(b, alpha=1 - m)
            mixed = torch.randperm(8, generator=g)
            keys = slow(two[mixed])[mixed.argsort()]
    asked, keys = F.normalize(asked.float(), dim=1), F.normalize(keys.float(), dim=1)
    right = (asked * keys).sum(1, keepdim=True)
    wrong = asked @ queue.clone().T
    loss = InfoNCE.apply(torch.cat([right, wrong], 1) / TAU)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    queue[pointer : pointer + 8] = keys
    pointer = (pointer + 8) % SIZE
net.eval()
with torch.no_grad():
    clean = ((pictures - 0.45) / 0.225).to(DTYPE)
    found = F.normalize(net(clean).float(), dim=1)
    close = found[30:] @ found[:30].T
    near = close.topk(5)
    votes = (F.one_hot(labels[:30][near.indices], 4) * (near.values / 0.1).exp()[..., None]).sum(1)
    share = votes / votes.sum(-1, keepdim=True)
print("right", round((share.argmax(-1) == labels[30:]).float().mean().item(), 4))
print("uniformity", round(torch.pdist(found).pow(2).mul(-2).exp().mean().log().item(), 5))
print("own share", round(share.gather(1, labels[30:, None]).mean().item(), 5))
