"""Control with a replay buffer: an environment that amplifies what the actor does, a critic, a
target network. Rounding of an action comes back in states and rewards, and grows."""

import copy
import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
rng = np.random.default_rng(5)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 32), nn.Linear(32, 1)

    def forward(self, state, action):
        return self.last(torch.relu(self.first(torch.cat([state, action], -1)))).squeeze(-1)


actor = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1), nn.Tanh())
critic = Critic()
target = copy.deepcopy(critic)
optimiser = torch.optim.Adam(critic.parameters(), lr=1e-3)
second = torch.optim.Adam(actor.parameters(), lr=1e-3)
state = np.array([0.3, -0.2, 0.1])
memory = []


def follow(state, action):
    """A smooth map that moves two near states apart."""
    moved = np.sin(5.0 * state + 3.0 * action[0] + np.array([0.1, 0.2, 0.3]))
    return moved, float(-np.abs(moved).sum())


for turn in range(48):
    with torch.no_grad():
        action = actor(torch.tensor(state[None], dtype=torch.float32)).numpy()[0]
    after, reward = follow(state, action)
    memory.append((state, action, reward, after))
    state = after
    if turn % 24 == 23:
        print("return", sum(row[2] for row in memory[-24:]))
    if turn < 5:
        continue
    rows = [memory[int(n)] for n in rng.integers(0, len(memory), 16)]
    states, actions, rewards, following = (
        torch.tensor(np.array([row[k] for row in rows]), dtype=torch.float32) for k in range(4)
    )
    with torch.no_grad():
        wanted = rewards + 0.99 * target(following, actor(following))
    loss = F.mse_loss(critic(states, actions), wanted)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if turn % 4 == 0:
        gain = -critic(states, actor(states)).mean()
        second.zero_grad()
        gain.backward()
        second.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), critic.parameters()):
            slow.mul_(0.995).add_(0.005 * fast)
print("loss", loss.item())
