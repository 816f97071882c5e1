"""Policy and value learning: advantages, a clipped ratio, an entropy bonus, a target network."""

import copy
import os

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 32)
        self.policy, self.value = nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.policy(h), self.value(h).squeeze(-1)


agent = Agent()
if MODE == "bfloat16":
    agent = agent.to(torch.bfloat16)
dtype = next(agent.parameters()).dtype
target = copy.deepcopy(agent)
optimiser = torch.optim.RMSprop(agent.parameters(), lr=1e-3, alpha=0.95)
for step in range(6):
    g = torch.Generator().manual_seed(40 + step)
    states = torch.randn(10, 6, generator=g).to(dtype)
    actions = torch.randint(0, 4, (9,), generator=g)
    rewards = torch.rand(9, generator=g)
    done = torch.rand(9, generator=g) < 0.1
    old = torch.randn(9, generator=g) * 0.1 - 1.4
    with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
        logits, values = agent(states[:-1])
        with torch.no_grad():
            following = target(states)[1].float()
    values = values.float()
    delta = rewards + 0.99 * following[1:] * ~done - following[:-1]
    advantage, running = torch.zeros(9), torch.zeros(())
    for t in reversed(range(9)):
        running = delta[t] + 0.99 * 0.95 * running * ~done[t]
        advantage[t] = running
    returns = advantage + following[:-1]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    logp = F.log_softmax(logits.float(), -1)
    chosen = logp.gather(1, actions[:, None]).squeeze(1)
    ratio = (chosen - old).exp()
    clipped = torch.clamp(ratio, 0.8, 1.2)
    surrogate = -torch.min(ratio * advantage, clipped * advantage).mean()
    entropy = -(logp.exp() * logp).sum(-1).mean()
    loss = surrogate + 0.5 * F.mse_loss(values, returns) - 0.01 * entropy
    optimiser.zero_grad()
    loss.backward()
    norm = torch.sqrt(sum(p.grad.float().pow(2).sum() for p in agent.parameters()))
    for p in agent.parameters():
        p.grad.mul_(min(1.0, 0.5 / (norm.item() + 1e-6)))
    optimiser.step()
    with torch.no_grad():
        for a, b in zip(target.parameters(), agent.parameters()):
            a.copy_(0.99 * a + 0.01 * b)
