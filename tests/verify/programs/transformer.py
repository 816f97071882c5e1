"""A small decoder with rotary positions, dropout and AdamW: what the planted faults change."""

import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(int(os.environ.get("THREADS", "1")))
DTYPE = getattr(torch, os.environ.get("DTYPE", "float32"))
D, HEADS, FFN, VOCAB, LAYERS, BATCH, TIME = 48, 4, 96, 97, 3, 2, 16


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * (s + x * s * (1 - s))


class Act(nn.Module):
    def forward(self, x):
        return Scaled.apply(x)


class RMSNorm(nn.Module):
    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Rotary(nn.Module):
    def __init__(self, d, base=10000.0):
        super().__init__()
        inv = 1.0 / (base ** (torch.arange(0, d, 2).float() / d))
        self.register_buffer("inv", inv, persistent=False)

    def forward(self, q, k):
        t = torch.arange(q.shape[-2]).float()
        f = torch.outer(t, self.inv.float())
        f = torch.cat((f, f), -1)
        cos, sin = f.cos().to(q.dtype), f.sin().to(q.dtype)
        return q * cos + half(q) * sin, k * cos + half(k) * sin


def half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


class Core(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.1)

    def forward(self, q, k, v, mask):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~mask, float("-inf"))
        weights = scores.softmax(-1)
        return self.drop(weights) @ v


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(D, D, bias=False)
        self.k_proj = nn.Linear(D, D, bias=False)
        self.v_proj = nn.Linear(D, D, bias=False)
        self.o_proj = nn.Linear(D, D, bias=False)
        self.rotary = Rotary(D // HEADS)
        self.core = Core()

    def forward(self, x, mask):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, HEADS, -1).transpose(1, 2)
        k = self.k_proj(x).view(b, t, HEADS, -1).transpose(1, 2)
        v = self.v_proj(x).view(b, t, HEADS, -1).transpose(1, 2)
        q, k = self.rotary(q, k)
        y = self.core(q, k, v, mask=mask)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, D))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(D, FFN, bias=False)
        self.up_proj = nn.Linear(D, FFN, bias=False)
        self.act = Act()
        self.down_proj = nn.Linear(FFN, D, bias=False)
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        return self.drop(self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = RMSNorm(D)
        self.attn = Attention()
        self.norm2 = RMSNorm(D)
        self.mlp = MLP()

    def forward(self, x, mask):
        x = x + self.attn(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, D)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = RMSNorm(D)
        self.head = nn.Linear(D, VOCAB, bias=False)

    def forward(self, ids):
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


def tokens(step):
    g = torch.Generator().manual_seed(100 + step)
    return torch.randint(0, VOCAB, (BATCH, TIME + 1), generator=g)


def make_optimiser(model):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)


def main():
    model = Model().to(DTYPE)
    model.train()
    optimiser = make_optimiser(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: 1.0 / (1 + s))
    for step in range(4):
        batch = tokens(step)
        ids, labels = batch[:, :-1], batch[:, 1:]
        logits = model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        print(step, loss.item())


main()
