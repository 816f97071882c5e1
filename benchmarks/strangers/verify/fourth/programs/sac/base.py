"""Soft actor-critic on a small arm: two critics, slow copies, a replay buffer, a learned temperature."""
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(127)
device = "cuda" if torch.cuda.is_available() else "cpu"
ARMS, GAMMA, TAU, BATCH, ROOM = 4, 0.98, 0.05, 32, 256
SEEN, MOVES = 5, 2


class Arms:
    """Some points on a plane, pushed by actions towards a goal."""

    def reset(self):
        self.place = torch.randn(ARMS, 2, device=device)
        self.speed = torch.zeros(ARMS, 2, device=device)
        self.age = torch.zeros(ARMS, 1, device=device)
        return self.look()

    def look(self):
        return torch.cat([self.place, self.speed, self.age / 10], dim=1)

    def step(self, action):
        self.speed = 0.8 * self.speed + 0.3 * action
        self.place = self.place + self.speed
        self.age = self.age + 1
        done = (self.age >= 10).float()
        reward = -self.place.norm(dim=1, keepdim=True) - 0.05 * action.pow(2).sum(1, keepdim=True)
        after = self.look()
        fresh = torch.randn(ARMS, 2, device=device)
        self.place = torch.where(done > 0, fresh, self.place)
        self.speed, self.age = self.speed * (1 - done), self.age * (1 - done)
        return after, reward, done


class Replay:
    def __init__(self):
        self.parts = [torch.zeros(ROOM, wide, device=device) for wide in (SEEN, MOVES, 1, SEEN, 1)]
        self.count = 0

    def add(self, *values):
        rows = (self.count + torch.arange(ARMS, device=device)) % ROOM
        for part, value in zip(self.parts, values):
            part[rows] = value
        self.count += ARMS

    def sample(self):
        rows = torch.randint(0, min(self.count, ROOM), (BATCH,), device=device)
        return [part[rows] for part in self.parts]


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SEEN, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.mean, self.spread = nn.Linear(32, MOVES), nn.Linear(32, MOVES)

    def forward(self, seen):
        hidden = self.body(seen)
        return self.mean(hidden), self.spread(hidden).clamp(-5, 1)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SEEN + MOVES, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, seen, action):
        return self.body(torch.cat([seen, action], dim=1))


def act(actor, seen):
    """An action between -1 and 1 and the logarithm of its density."""
    mean, spread = actor(seen)
    noise = torch.randn_like(mean)
    action = torch.tanh(mean + spread.exp() * noise)
    density = -0.5 * noise.pow(2) - spread - 0.5 * math.log(2 * math.pi)
    density = density - torch.log(1 - action.pow(2) + 1e-6)
    return action, density.sum(dim=1, keepdim=True)


actor = Actor().to(device)
critics = nn.ModuleList([Critic(), Critic()]).to(device)
slow = copy.deepcopy(critics).requires_grad_(False)
heat = torch.zeros((), device=device, requires_grad=True)
optimizer_a = torch.optim.Adam(actor.parameters(), lr=3e-3)
optimizer_c = torch.optim.Adam(critics.parameters(), lr=3e-3)
optimizer_h = torch.optim.Adam([heat], lr=1e-2)
arms, replay = Arms(), Replay()
seen = arms.reset()
for _ in range(16):
    action = torch.rand(ARMS, MOVES, device=device) * 2 - 1
    after, reward, done = arms.step(action)
    replay.add(seen, action, reward, after, done)
    seen = arms.look()

for step in range(5):
    with torch.no_grad():
        action, _ = act(actor, seen)
    after, reward, done = arms.step(action)
    replay.add(seen, action, reward, after, done)
    seen = arms.look()

    s, a, r, n, d = replay.sample()
    with torch.no_grad():
        following, density = act(actor, n)
        value = torch.minimum(slow[0](n, following), slow[1](n, following)) - heat.exp() * density
        wanted = r + GAMMA * (1 - d) * value
    loss_c = F.mse_loss(critics[0](s, a), wanted) + F.mse_loss(critics[1](s, a), wanted)
    optimizer_c.zero_grad()
    loss_c.backward()
    optimizer_c.step()

    action, density = act(actor, s)
    value = torch.minimum(critics[0](s, action), critics[1](s, action))
    loss_a = (heat.exp().detach() * density - value).mean()
    optimizer_a.zero_grad()
    loss_a.backward()
    optimizer_a.step()

    loss_h = -(heat * (density.detach() - MOVES)).mean()
    optimizer_h.zero_grad()
    loss_h.backward()
    optimizer_h.step()
    with torch.no_grad():
        for old, new in zip(slow.parameters(), critics.parameters()):
            old.mul_(1 - TAU).add_(new, alpha=TAU)
    print(f"step {step} critic {loss_c.item():.6f} actor {loss_a.item():.6f} heat {heat.item():.6f}", flush=True)
