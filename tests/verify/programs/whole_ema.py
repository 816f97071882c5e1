"""A GAN with an averaged generator: losses by a custom autograd function, an optimiser by hand that
takes a closure (sharpness-aware), gradients accumulated over parts, and samples of the average."""

import copy
import os

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")
kind = torch.bfloat16 if MODE == "bfloat16" else torch.float32
PARTS = 2


class Bounded(torch.autograd.Function):
    """Clamps, with a gradient that leaks outside."""

    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward(x)
        ctx.bounds = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        low, high = ctx.bounds
        inside = ((x >= low) & (x <= high)).to(grad.dtype)
        return grad * (inside + 0.1 * (1 - inside)), None, None


class Sharp(torch.optim.Optimizer):
    """Adam at the gradient of a neighbour: the closure is called twice."""

    def __init__(self, params, lr, rho=0.05, betas=(0.5, 0.9)):
        super().__init__(params, {"lr": lr, "rho": rho, "betas": betas})

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            norm = torch.stack([p.grad.float().norm() for p in group["params"]]).norm()
            moved = []
            for p in group["params"]:
                e = (p.grad.float() * (group["rho"] / (norm + 1e-12))).to(p.dtype)
                p.add_(e)
                moved.append(e)
        with torch.enable_grad():
            closure()
        for group in self.param_groups:
            one, two = group["betas"]
            for p, e in zip(group["params"], moved):
                p.sub_(e)
                held = self.state[p]
                if not held:
                    held.update(t=0, m=torch.zeros_like(p, dtype=torch.float32), v=torch.zeros_like(p, dtype=torch.float32))
                held["t"] += 1
                g = p.grad.float()
                held["m"].lerp_(g, 1 - one)
                held["v"].mul_(two).addcmul_(g, g, value=1 - two)
                m, v = held["m"] / (1 - one ** held["t"]), held["v"] / (1 - two ** held["t"])
                p.sub_((group["lr"] * m / (v.sqrt() + 1e-8)).to(p.dtype))
        return loss


maker = nn.Sequential(nn.Linear(6, 24), nn.LeakyReLU(0.2), nn.Linear(24, 8)).to(kind)
judge = nn.Sequential(nn.Linear(8, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1)).to(kind)
smooth = copy.deepcopy(maker).requires_grad_(False)
of_maker, of_judge = Sharp(maker.parameters(), 4e-3), torch.optim.RMSprop(judge.parameters(), 2e-3, alpha=0.9)
warm = torch.optim.lr_scheduler.LinearLR(of_judge, 0.25, 1.0, 4)


def truth(step, part):
    g = torch.Generator().manual_seed(1000 + 10 * step + part)
    x = torch.randn(8, 8, generator=g)
    return (x.cumsum(1) / 3).to(kind), torch.randn(8, 6, generator=g).to(kind)


def scored(x):
    with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
        return judge(x).float()


for step in range(10):
    of_judge.zero_grad()
    for part in range(PARTS):
        real, noise = truth(step, part)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
            fake = maker(noise)
        a, b = scored(real), scored(fake.to(kind))
        wanted = torch.full_like(a, 0.9)
        loss = F.binary_cross_entropy_with_logits(Bounded.apply(a, -2.0, 2.0), wanted)
        loss = loss + F.binary_cross_entropy_with_logits(Bounded.apply(b, -2.0, 2.0), torch.zeros_like(b))
        drift = 1e-3 * (a**2).mean()
        ((loss + drift) / PARTS).backward()
    for p in judge.parameters():
        p.grad.nan_to_num_(0.0)
    nn.utils.clip_grad_norm_(judge.parameters(), 0.5)
    of_judge.step()
    warm.step()
    if step % 2 == 1:
        noises = [truth(step, 10 + part)[1] for part in range(PARTS)]

        def closure():
            of_maker.zero_grad()
            total = 0.0
            for noise in noises:
                with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
                    made = maker(noise)
                got = scored(made.to(kind))
                spread = made.float().std(0).mean()
                loss = F.softplus(-got).mean() - 0.05 * spread
                (loss / PARTS).backward()
                total = total + loss.detach() / PARTS
            return total

        g_loss = of_maker.step(closure)
        with torch.no_grad():
            decay = min(0.95, (1 + step) / (4 + step))
            for a, b in zip(smooth.parameters(), maker.parameters()):
                a.lerp_(b, 1 - decay)
        print("step", step, f"{loss.item():.5f}", f"{float(g_loss):.5f}")
smooth.eval()
with torch.no_grad():
    g = torch.Generator().manual_seed(3)
    z = torch.randn(64, 6, generator=g)
    z = z.clamp(-1.5, 1.5).to(kind)  # truncated
    made = smooth(z).float()
    real = torch.cat([truth(90 + i, 0)[0] for i in range(8)]).float()
    gap = (made.mean(0) - real.mean(0)).square().sum() + (made.var(0) - real.var(0)).abs().sum()
print("gap", f"{gap.item():.4f}")
