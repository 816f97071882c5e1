"""REINFORCE with a value baseline on eight small worlds at once."""
import time

import torch
import torch.nn as nn
from torch.distributions import Categorical

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
WORLDS, LENGTH, GAMMA = 8, 12, 0.97


class Worlds:
    """A cart on a line for each world; the reward is higher near the middle."""

    def __init__(self, count):
        self.count = count

    def reset(self):
        self.place = torch.linspace(-2.0, 2.0, self.count, device=device)
        self.speed = torch.zeros(self.count, device=device)
        return self.observe()

    def observe(self):
        return torch.stack([self.place, self.speed, self.place * self.speed, self.place.abs()], dim=1)

    def step(self, action):
        force = (action - 1).float() * 0.4
        self.speed = 0.9 * self.speed + force
        self.place = (self.place + 0.3 * self.speed).clamp(-3, 3)
        return self.observe(), 1.0 - self.place.abs()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.actor = nn.Linear(32, 3)
        self.critic = nn.Linear(32, 1)

    def forward(self, seen):
        hidden = self.body(seen)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


policy = Policy().to(device)
optimizer = torch.optim.RMSprop(policy.parameters(), lr=3e-3)
worlds = Worlds(WORLDS)
discounts = GAMMA ** torch.arange(LENGTH, device=device, dtype=torch.float32)


def discounted(rewards):
    """Discounted returns, worlds in rows, of rewards with moments in rows."""
    backwards = rewards.flip(0).t() / discounts
    sums = torch.cumsum(backwards, dim=1) * discounts
    return sums.flip(1)


for episode in range(5):
    begun = time.perf_counter()
    seen = worlds.reset()
    chances, entropies, values, rewards = [], [], [], []
    for moment in range(LENGTH):
        logits, value = policy(seen)
        choice = Categorical(logits=logits)
        action = choice.sample()
        seen, reward = worlds.step(action)
        chances.append(choice.log_prob(action))
        entropies.append(choice.entropy())
        values.append(value)
        rewards.append(reward)
    returns = discounted(torch.stack(rewards))
    value = torch.stack(values, dim=1)
    advantage = returns - value.detach()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gain = (torch.stack(chances, dim=1) * advantage).mean()
    error = (value - returns).pow(2).mean()
    spread = torch.stack(entropies, dim=1).mean()
    loss = -gain + 0.5 * error - 0.02 * spread
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
    optimizer.step()
    print(f"episode {episode} loss {loss.item():.6f} return {returns[:, 0].mean().item():.6f} {WORLDS * LENGTH / (time.perf_counter() - begun):.0f} a second", flush=True)
