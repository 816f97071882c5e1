"""REINFORCE with a baseline on a corridor; the world is numpy, the actions are greedy with a fixed exploration list."""
import numpy as np, torch, torch.nn as nn
from torch.distributions import Categorical
import accel  # noqa

torch.manual_seed(2); rng = np.random.default_rng(4)

class Corridor:
    def reset(self):
        self.p, self.t = 5, 0
        return self.obs()
    def obs(self):
        o = np.zeros(12, np.float32); o[self.p] = 1; o[11] = self.t / 20; return o
    def step(self, a):
        self.p = int(np.clip(self.p + (a - 1), 0, 10)); self.t += 1
        done = self.t == 20 or self.p == 10
        return self.obs(), 1.0 if self.p == 10 else -0.05, done

class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 32), nn.Tanh()); self.pi = nn.Linear(32, 3); self.v = nn.Linear(32, 1)
    def forward(self, o):
        h = self.body(o); return self.pi(h), self.v(h).squeeze(-1)

net, env = Policy(), Corridor()
opt = torch.optim.Adam(net.parameters(), 1e-2)
for episode in range(10):
    o, done, obs, act, rew = env.reset(), False, [], [], []
    while not done:
        a = int(rng.integers(3)); obs.append(o); act.append(a)   # off-policy exploration
        o, r, done = env.step(a); rew.append(r)
    ret = np.zeros(len(rew), np.float32); run = 0.0
    for i in reversed(range(len(rew))): run = rew[i] + 0.98 * run; ret[i] = run
    logits, value = net(torch.from_numpy(np.stack(obs)))
    dist = Categorical(logits=logits); R = torch.from_numpy(ret)
    adv = (R - value).detach()
    loss = -(dist.log_prob(torch.tensor(act)) * adv).mean() + 0.5 * (R - value).pow(2).mean() - 0.05 * dist.entropy().mean()
    opt.zero_grad(); loss.backward(); opt.step()
    print(f"episode {episode} return {ret[0]:.3f} loss {loss.item():.4f}")
