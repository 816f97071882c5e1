"""torch.func: a model called by functional_call, per-sample gradients clipped, Adam by hand."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad_and_value, jvp, vmap

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")
net = nn.Sequential(nn.Linear(9, 20), nn.Tanh(), nn.Linear(20, 4))
kind = torch.bfloat16 if MODE == "bfloat16" else torch.float32
weights = {n: p.detach().to(kind).clone() for n, p in net.named_parameters()}
first = {n: torch.zeros_like(p) for n, p in weights.items()}
second = {n: torch.zeros_like(p) for n, p in weights.items()}
prior = torch.linspace(0.5, 1.5, 4)


def loss_of(weights, x, y):
    logits = functional_call(net, weights, (x[None],))[0].float()
    wanted = (torch.arange(4) == y).float()
    nll = -(F.log_softmax(logits, -1) * wanted * prior).sum()
    decay = sum((w.float() ** 2).sum() for w in weights.values())
    return nll + 1e-3 * decay


per_sample = vmap(grad_and_value(loss_of), in_dims=(None, 0, 0))
for step in range(6):
    g = torch.Generator().manual_seed(70 + step)
    x, y = torch.randn(12, 9, generator=g).to(kind), torch.randint(0, 4, (12,), generator=g)
    with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
        grads, losses = per_sample(weights, x, y)
    norms = torch.sqrt(sum((v.float() ** 2).flatten(1).sum(1) for v in grads.values()))
    scale = (1.0 / (norms + 1e-6)).clamp(max=1.0)
    mean = {n: torch.einsum("b,b...->...", scale, v.float()) / 12 for n, v in grads.items()}
    for n, p in weights.items():
        first[n].mul_(0.9).add_(mean[n].to(kind), alpha=0.1)
        second[n].mul_(0.99).add_((mean[n] ** 2).to(kind), alpha=0.01)
        a = first[n].float() / (1 - 0.9 ** (step + 1))
        b = second[n].float() / (1 - 0.99 ** (step + 1))
        p.sub_((0.02 * a / (b.sqrt() + 1e-8)).to(kind))
    if step % 2 == 0:
        _, slope = jvp(lambda x: functional_call(net, weights, (x,)), (x,), (torch.ones_like(x),))
        print("slope", f"{slope.float().abs().mean().item():.4f}")
    print("loss", f"{losses.float().mean().item():.5f}")
