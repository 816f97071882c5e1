"""A language model's whole program: masked loss, accumulation, clipping, schedule, averaged copy,
router bias, validation, and decoding with a cache of keys and values."""

import copy
import os

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")
V, D, H, B, T, PAD = 61, 32, 4, 4, 12, 0


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x, past=None):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None and t > 1)
        return self.out(y.transpose(1, 2).reshape(b, t, D)), (k, v)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D, 4, bias=False)
        self.up = nn.ModuleList(nn.Linear(D, D) for _ in range(4))
        self.register_buffer("bias", torch.zeros(4))
        self.register_buffer("load", torch.zeros(4))

    def forward(self, x):
        scores = self.router(x).float().sigmoid()
        chosen = (scores + self.bias).topk(2, -1).indices
        gate = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
        self.load += F.one_hot(chosen, 4).sum((0, 1, 2)).float() if self.training else 0
        return sum(gate[..., i : i + 1].to(x.dtype) * F.silu(up(x)) for i, up in enumerate(self.up))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn, self.moe, self.drop = Attention(), Experts(), nn.Dropout(0.1)

    def forward(self, x, past=None):
        y, past = self.attn(self.n1(x), past)
        x = x + self.drop(y)
        return x + self.moe(self.n2(x)), past


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(V, D), nn.Embedding(64, D)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)

    def forward(self, ids, past=None, start=0):
        x = self.embed(ids) + self.place(torch.arange(start, start + ids.shape[1]))
        kept = []
        for i, block in enumerate(self.blocks):
            x, kv = block(x, past[i] if past else None)
            kept.append(kv)
        return self.head(self.norm(x)), kept


def batch(step, part):
    g = torch.Generator().manual_seed(1000 + 10 * step + part)
    ids = torch.randint(1, V, (B, T + 1), generator=g)
    ids[0, -4:] = PAD
    return ids[:, :-1], ids[:, 1:]


def loss_of(logits, labels):
    logits = logits.float()
    nll = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none", label_smoothing=0.1)
    mask = (labels != PAD).flatten()
    z = torch.logsumexp(logits, -1).pow(2).flatten()
    return ((nll + 1e-3 * z) * mask).sum() / mask.sum()


model = LM()
ema = copy.deepcopy(model).requires_grad_(False)
if MODE == "bfloat16":
    model = model.to(torch.bfloat16)
    ema = ema.to(torch.bfloat16)
decay = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() <= 1]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
optimiser = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: min(1.0, (s + 1) / 4) if s < 6 else 0.1)
for step in range(8):
    model.train()
    for part in range(2):
        ids, labels = batch(step, part)
        with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
            logits, _ = model(ids)
        loss = loss_of(logits, labels) / 2
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimiser.step()
    schedule.step()
    optimiser.zero_grad()
    with torch.no_grad():
        for mine, theirs in zip(ema.parameters(), model.parameters()):
            mine.mul_(0.9).add_(theirs, alpha=0.1)
        for block in model.blocks:
            moe = block.moe
            moe.bias += 0.01 * torch.sign(moe.load.mean() - moe.load)
            moe.load.zero_()
    if step % 2 == 1:
        model.eval()
        with torch.no_grad():
            ids, labels = batch(900, 0)
            held = loss_of(model(ids)[0], labels)
        print(f"step {step} valid {held.item():.4f}")
model.eval()
with torch.no_grad():
    ids = batch(901, 0)[0][:, :5]
    logits, past = model(ids)
    token, tokens = logits[:, -1:].argmax(-1), []
    for position in range(5, 15):
        logits, past = model(token, past, position)
        token = (logits[:, -1:] / 0.7).argmax(-1)
        tokens.append(token)
print("tokens", torch.cat(tokens, 1).tolist())
