"""Experts with a loss kept on the module, checkpointing, a hook, an optimiser by Newton's steps,
float32 copies of the weights, a rate that stays and then falls."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")


class Experts(nn.Module):
    def __init__(self, width, count):
        super().__init__()
        self.gate = nn.Linear(width, count, bias=False)
        self.w1 = nn.Parameter(torch.randn(count, width, 32) * 0.2)
        self.w2 = nn.Parameter(torch.randn(count, 32, width) * 0.2)
        self.register_buffer("load", torch.zeros(count))
        self.balance = None

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        share = self.gate(flat).float().softmax(-1)
        top, where = share.topk(2, -1)
        top = top / top.sum(-1, keepdim=True)
        made = torch.zeros_like(flat)
        for e in range(share.shape[1]):
            token, rank = (where == e).nonzero(as_tuple=True)
            hidden = F.silu(flat[token] @ self.w1[e]) @ self.w2[e]
            made = made.index_add(0, token, (hidden * top[token, rank, None]).to(made.dtype))
        used = F.one_hot(where, share.shape[1]).float().sum((0, 1)) / where.numel()
        self.balance = (used * share.mean(0)).sum() * share.shape[1]
        if torch.is_grad_enabled():
            self.load.mul_(0.8).add_(used.detach(), alpha=0.2)
        return made.view_as(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.experts = nn.ModuleList(Experts(16, 4) for _ in range(2))
        self.head = nn.Linear(16, 30)

    def forward(self, ids):
        x = self.embed(ids)
        x = x + checkpoint(lambda t: torch.tanh(t.cumsum(1) / 3), x, use_reentrant=False)
        for norm, expert in zip(self.norms, self.experts):
            x = x + expert(norm(x))
        return self.head(x)


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr, "beta": 0.9})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                held = self.state[p]
                if not held:
                    held["mean"] = torch.zeros_like(p)
                held["mean"].mul_(group["beta"]).add_(p.grad)
                u = p.grad + group["beta"] * held["mean"]
                if u.dim() >= 2:
                    x = u.float() / (u.float().norm(dim=(-2, -1), keepdim=True) + 1e-7)
                    for _ in range(3):
                        a = x @ x.mT
                        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
                    u = x * max(1, x.shape[-2] / x.shape[-1]) ** 0.5
                p.add_(u.to(p.dtype), alpha=-group["lr"])


net = Net()
if MODE == "bfloat16":
    net = net.to(torch.bfloat16)
for expert in net.experts:
    expert.w1.register_hook(lambda g: g * 0.5)
masters = [p.detach().float().clone() for p in net.parameters()]
for m in masters:
    m.requires_grad_()
optimiser = Muon(masters, 0.01)
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimiser, lambda s: min(1.0, (s + 1) / 2) * (1.0 if s < 6 else 1 - (s - 5) / 5)
)
dead = torch.zeros(30)
for step in range(10):
    g = torch.Generator().manual_seed(100 + step)
    ids = torch.randint(0, 30, (4, 9), generator=g)
    with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
        logits = net(ids[:, :-1])
    balance = sum(e.balance for e in net.experts)
    loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
    loss = loss + 0.02 * balance
    net.zero_grad()
    loss.backward()
    for p, m in zip(net.parameters(), masters):
        m.grad = p.grad.float() * 0.9
    norm = nn.utils.clip_grad_norm_(masters, 1.0)
    if torch.isfinite(norm):
        optimiser.step()
    schedule.step()
    with torch.no_grad():
        for p, m in zip(net.parameters(), masters):
            p.copy_(m)
        dead += (net.embed.weight.grad.float().abs().sum(1) == 0).float()
        if step % 4 == 3:
            for e in net.experts:
                e.gate.weight.mul_(0.999)
    print("step", step, f"{loss.item():.5f}", f"{float(norm):.4f}")
print("dead", int((dead > 5).sum()))
