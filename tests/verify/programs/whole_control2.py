"""Soft actor-critic from stored transitions: two critics with slow copies, a temperature that is
learnt, a squashed Gaussian, targets over several steps, sampling by priority."""

import copy
import os

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")
kind = torch.bfloat16 if MODE == "bfloat16" else torch.float32
A, O, ROWS = 2, 5, 16


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.mean, self.spread = nn.Linear(O, 24), nn.Linear(24, A), nn.Linear(24, A)

    def forward(self, x, noise):
        h = torch.tanh(self.body(x))
        mean, log = self.mean(h).float(), self.spread(h).float().clamp(-5, 2)
        raw = mean + log.exp() * noise
        action = torch.tanh(raw)
        logp = (-0.5 * noise**2 - log - 0.9189).sum(-1)
        return action, logp - torch.log(1 - action**2 + 1e-6).sum(-1)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(O + A, 24), nn.Linear(24, 24), nn.Linear(24, 1)

    def forward(self, x, action):
        h = torch.relu(self.a(torch.cat([x, action.to(x.dtype)], -1)))
        return self.c(torch.relu(self.b(h))).squeeze(-1).float()


actor, one, two = (kind_of().to(kind) for kind_of in (Actor, Critic, Critic))
slow_one, slow_two = copy.deepcopy(one), copy.deepcopy(two)
heat = torch.zeros((), requires_grad=True)
act = torch.optim.Adam(actor.parameters(), lr=3e-3)
judge = torch.optim.Adam([*one.parameters(), *two.parameters()], lr=3e-3)
warm = torch.optim.SGD([heat], lr=0.05)
g = torch.Generator().manual_seed(12)
states, actions = torch.randn(64, O, generator=g), torch.tanh(torch.randn(64, A, generator=g))
rewards = torch.rand(64, 3, generator=g)
over = torch.rand(64, generator=g) < 0.15
following = states + 0.1 * torch.randn(64, O, generator=g)
priority = torch.ones(64)
GAMMA = 0.97
for step in range(8):
    pick = torch.multinomial(priority**0.6, ROWS, replacement=True, generator=g)
    share = priority[pick] ** 0.6 / (priority**0.6).sum()
    weight = (64 * share) ** -0.4
    weight = weight / weight.max()
    s, a, t, end = states[pick].to(kind), actions[pick], following[pick].to(kind), over[pick]
    steps = torch.tensor([1.0, GAMMA, GAMMA**2])
    gained = (rewards[pick] * steps).sum(-1)
    noise = torch.randn(3, ROWS, A, generator=g)
    with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
        with torch.no_grad():
            b, logp = actor(t, noise[0])
            least = torch.min(slow_one(t, b), slow_two(t, b))
            wanted = gained + GAMMA**3 * ~end * (least - heat.exp() * logp)
        q, r = one(s, a), two(s, a)
    off = ((q - wanted).abs() + (r - wanted).abs()) / 2
    loss = (weight * (F.huber_loss(q, wanted, reduction="none") + F.huber_loss(r, wanted, reduction="none"))).mean()
    judge.zero_grad()
    loss.backward()
    judge.step()
    priority[pick] = off.detach() + 1e-3
    if step % 2:
        for p in (*one.parameters(), *two.parameters()):
            p.requires_grad_(False)
        with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
            b, logp = actor(s, noise[1])
            best = torch.min(one(s, b), two(s, b))
        policy = (heat.exp().detach() * logp - best).mean()
        act.zero_grad()
        policy.backward()
        act.step()
        for p in (*one.parameters(), *two.parameters()):
            p.requires_grad_(True)
        warm.zero_grad()
        (-heat.exp() * (logp.detach() - A)).mean().backward()
        warm.step()
    with torch.no_grad():
        for slow, fast in ((slow_one, one), (slow_two, two)):
            for x, y in zip(slow.parameters(), fast.parameters()):
                x.mul_(0.95).add_(y, alpha=0.05)
