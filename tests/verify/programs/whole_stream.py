"""A language model trained by a hand-written optimiser with label smoothing, that then streams: a
cache with first tokens kept and a window that rolls, in inference mode, sampled and by beams."""

import math
import os

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")
kind = torch.bfloat16 if MODE == "bfloat16" else torch.float32
V, D, H, SINK, WINDOW = 29, 24, 3, 2, 6


def turned(x, at):
    """Rotary positions: x [b, h, t, e], at [t]."""
    half = x.shape[-1] // 2
    angle = at[:, None].float() * 1000.0 ** (-torch.arange(half) / half)
    c, s = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * c - b * s, a * s + b * c], -1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.RMSNorm(D), nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 2 * 48, bias=False), nn.Linear(48, D, bias=False)

    def forward(self, x, past=None):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            if k.shape[2] > SINK + WINDOW:
                k = torch.cat([k[:, :, :SINK], k[:, :, -WINDOW:]], 2)
                v = torch.cat([v[:, :, :SINK], v[:, :, -WINDOW:]], 2)
        held = k, v
        places = torch.arange(k.shape[2])
        q, k = turned(q, places[-t:]), turned(k, places)
        score = q @ k.mT / math.sqrt(D // H)
        hidden = torch.full((t, k.shape[2]), float("-inf"), dtype=score.dtype).triu(k.shape[2] - t + 1)
        x = x + self.out(((score + hidden).softmax(-1) @ v).transpose(1, 2).reshape(b, t, D))
        gate, value = self.up(self.norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * value), held


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers, self.last = nn.Embedding(V, D), nn.ModuleList(Layer() for _ in range(2)), nn.RMSNorm(D)

    def forward(self, ids, past=None):
        x, kept = self.embed(ids) * D**0.5 * 0.2, []
        for layer, before in zip(self.layers, past or [None] * 2):
            x, held = layer(x, before)
            kept.append(held)
        return F.linear(self.last(x), self.embed.weight), kept


model = Model().to(kind)
first = {n: torch.zeros_like(p, dtype=torch.float32) for n, p in model.named_parameters()}
second = {n: torch.zeros_like(p, dtype=torch.float32) for n, p in model.named_parameters()}
PARTS, updates = 3, 0
for micro in range(30):
    g = torch.Generator().manual_seed(200 + micro)
    ids = (torch.randint(0, 5, (4, 12), generator=g).cumsum(1) % (V - 1)) + 1
    ids[:, 9 + micro % 3 :] = 0
    with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
        logits, _ = model(ids[:, :-1])
    goal = ids[:, 1:]
    logp = F.log_softmax(logits.float(), -1)
    nll = -logp.gather(-1, goal[..., None])[..., 0]
    even = -logp.mean(-1)
    mask = (goal != 0).float()
    loss = ((0.9 * nll + 0.1 * even) * mask).sum() / mask.sum()
    (loss / PARTS).backward()
    if (micro + 1) % PARTS:
        continue
    updates += 1
    rate = 0.01 * min(updates / 3, (3 / updates) ** 0.5)
    with torch.no_grad():
        norm = math.sqrt(sum(p.grad.float().square().sum().item() for p in model.parameters()))
        for n, p in model.named_parameters():
            g = p.grad.float() * min(1.0, 0.7 / (norm + 1e-6))
            first[n].mul_(0.9).add_(g, alpha=0.1)
            second[n].mul_(0.95).addcmul_(g, g, value=0.05)
            step = first[n] / (1 - 0.9**updates) / ((second[n] / (1 - 0.95**updates)).sqrt() + 1e-8)
            p.sub_((rate * (step + 0.05 * p.float() * (p.dim() > 1))).to(p.dtype))
            p.grad = None
    print("update", updates, f"{loss.item():.5f}")


def stream(prompt, count, heat):
    """Tokens one by one, with their scores."""
    draw = torch.Generator().manual_seed(6)
    logits, past = model(prompt)
    for _ in range(count):
        share = (logits[:, -1].float() / heat).softmax(-1)
        ranked, place = share.sort(-1, descending=True)
        ranked = ranked * (ranked.cumsum(-1) - ranked < 0.85)
        pick = torch.multinomial(ranked / ranked.sum(-1, keepdim=True), 1, generator=draw)
        token = place.gather(-1, pick)
        yield token, share.gather(-1, token).log()
        logits, past = model(token, past)


model.eval()
with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
    score = 0.0
    for token, one in stream(torch.tensor([[1, 3, 4, 8]]), 9, 0.7):
        score = score + one
    print("streamed", f"{score.item() / 9:.5f}")
    beams, done = [([2, 5], 0.0, None)], []
    for _ in range(6):
        made = []
        for said, total, past in beams:
            logits, after = model(torch.tensor([said if past is None else said[-1:]]), past)
            values, tokens = logits[0, -1].float().log_softmax(-1).topk(3)
            made += [([*said, int(t)], total + float(v), after) for v, t in zip(values, tokens)]
        made.sort(key=lambda b: -b[1] / (len(b[0]) ** 0.8))
        beams = made[:3]
    print("beam", *beams[0][0], f"{beams[0][1]:.5f}")
