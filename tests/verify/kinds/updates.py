"""Three optimisers, one of them the user's own, a scheduler, clipping, accumulation."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.verify.kinds.machine import FAULT, start


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "decay": decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                a, b = group["betas"]
                way = m.mul(b if FAULT == "swap" else a).add(p.grad, alpha=1 - a).sign()
                p.mul_(1 - group["lr"] * group["decay"]).add_(way, alpha=-group["lr"])
                m.mul_(b).add_(p.grad, alpha=1 - b)


def skip_decay(opt):
    """A step that leaves the decay out, as a faulty release would."""
    real = opt.step

    def step(*args, **kw):
        kept = [g["weight_decay"] for g in opt.param_groups]
        for g in opt.param_groups:
            g["weight_decay"] = 0.0
        real(*args, **kw)
        for g, value in zip(opt.param_groups, kept, strict=True):
            g["weight_decay"] = value

    opt.step = step


def main():
    torch.manual_seed(9)
    encoder, body, head = nn.Linear(10, 16), nn.Linear(16, 16), nn.Linear(16, 3)
    first = torch.optim.AdamW(encoder.parameters(), lr=1e-2, weight_decay=0.1, amsgrad=True)
    second = torch.optim.RMSprop(
        body.parameters(), lr=1e-3, centered=FAULT == "centred", momentum=0.5
    )
    third = Lion(head.parameters(), lr=3e-3)
    plan = torch.optim.lr_scheduler.StepLR(first, 3 if FAULT == "plan" else 2, 0.5)
    if FAULT == "decay":
        skip_decay(first)
    start()
    x, y = torch.randn(8, 2, 12, 10), torch.randn(8, 2, 12, 3)
    for step in range(8):
        for opt in (first, second, third):
            opt.zero_grad()
        total = 0.0
        for part in range(2):
            out = head(torch.tanh(body(torch.tanh(encoder(x[step, part])))))
            loss = F.smooth_l1_loss(out, y[step, part]) / (1 if FAULT == "accumulate" else 2)
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(encoder.parameters(), 0.1 if FAULT == "clip" else 0.05)
        for opt in (first, second, third):
            opt.step()
        plan.step()
        print(f"step {step} loss: {total:.6f}")


main()
