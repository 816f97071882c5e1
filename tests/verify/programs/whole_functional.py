"""No modules: a network of plain functions, a custom gradient, and SGD with momentum by hand."""

import os

import torch
import torch.nn.functional as F

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")


class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-2, 2)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 2).to(grad.dtype)


kind = torch.bfloat16 if MODE == "bfloat16" else torch.float32
w = {
    "one": (torch.randn(12, 24) * 0.5).to(kind).requires_grad_(True),
    "two": (torch.randn(24, 24) * 0.5).to(kind).requires_grad_(True),
    "out": (torch.randn(24, 5) * 0.3).to(kind).requires_grad_(True),
}
speed = {n: torch.zeros_like(p) for n, p in w.items()}


def network(x):
    x = Clip.apply(torch.einsum("bi,ij->bj", x, w["one"]))
    x = x + torch.tanh(torch.einsum("bi,ij->bj", x, w["two"]))
    return torch.einsum("bi,ij->bj", x, w["out"])


for step in range(6):
    g = torch.Generator().manual_seed(11 + step)
    x, y = torch.randn(16, 12, generator=g).to(kind), torch.randint(0, 5, (16,), generator=g)
    with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
        logits = network(x)
    loss = F.cross_entropy(logits.float(), y, label_smoothing=0.05)
    grads = torch.autograd.grad(loss, list(w.values()))
    with torch.no_grad():
        for (n, p), grad in zip(w.items(), grads):
            speed[n].mul_(0.9).add_(grad)
            p.sub_(0.1 * speed[n])
print("loss", f"{loss.item():.5f}")
