"""A script without modules: attention by einsum over tensors in a dict, backward, SGD by hand."""

import math
import os

import torch

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")
kind = torch.bfloat16 if MODE == "bfloat16" else torch.float32
D, H, V = 16, 4, 20
w = {
    name: (torch.randn(shape) * 0.3).to(kind).requires_grad_()
    for name, shape in {
        "embed": (V, D), "q": (D, H, D // H), "k": (D, H, D // H), "v": (D, H, D // H),
        "o": (H, D // H, D), "up": (D, 32), "down": (32, D), "gain": (D,),
    }.items()
}  # fmt: skip
table = torch.arange(10)[:, None] * 10.0 ** (-torch.arange(D // 2) / (D // 2))
shadow = {n: p.detach().clone() for n, p in w.items()}


def norm(x):
    return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5).to(x.dtype)


def forward(ids):
    x = w["embed"][ids]
    x = x + torch.cat([table.sin(), table.cos()], -1)[: ids.shape[1]].to(x.dtype)
    h = norm(x) * w["gain"]
    q, k, v = (torch.einsum("btd,dhe->bhte", h, w[n]) for n in "qkv")
    score = torch.einsum("bhte,bhse->bhts", q, k) / math.sqrt(D // H)
    hidden = torch.full(score.shape[-2:], float("-inf"), dtype=score.dtype).triu(1)
    mix = torch.einsum("bhts,bhse->bhte", torch.softmax(score + hidden, -1), v)
    x = x + torch.einsum("bhte,hed->btd", mix, w["o"])
    x = x + torch.nn.functional.silu(norm(x) @ w["up"]) @ w["down"]
    return norm(x) @ w["embed"].T


for step in range(8):
    g = torch.Generator().manual_seed(step)
    ids = torch.randint(0, V, (4, 9), generator=g)
    with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
        logits = forward(ids[:, :-1]).float()
    chosen = logits.gather(-1, ids[:, 1:, None])[..., 0]
    loss = (torch.logsumexp(logits, -1) - chosen).mean()
    loss = loss + 1e-4 * (torch.logsumexp(logits, -1) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        total = math.sqrt(sum(float(p.grad.float().pow(2).sum()) for p in w.values()))
        for n, p in w.items():
            g = p.grad * min(1.0, 1.0 / total)
            rate = 0.2 * (0.5 if step >= 6 else 1.0)
            p -= rate * (g + (1e-3 * p if p.dim() > 1 else 0))
            p.grad = None
            shadow[n].lerp_(p, 0.1)
    print("loss", f"{loss.item():.5f}")
with torch.no_grad():
    ids = torch.tensor([[1, 2, 3]])
    for _ in range(4):
        ids = torch.cat([ids, forward(ids)[:, -1:].float().argmax(-1)], 1)
    print("logprob", f"{torch.log_softmax(forward(ids).float(), -1).max(-1).values.sum():.4f}")
