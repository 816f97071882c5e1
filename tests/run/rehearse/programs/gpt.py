"""Train a small GPT on one device and print the losses: gpt.py DEVICE [STEPS] [--big] [--sdpa] [--amp]."""

import json
import math
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads, sdpa):
        super().__init__()
        self.heads, self.sdpa = heads, sdpa
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        B, T, D = x.shape
        qkv = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, D // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-1, -2)) / math.sqrt(D // self.heads)
            mask = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
            y = scores.masked_fill(mask, -1e4).softmax(-1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary, width, heads, layers, length, sdpa):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, sdpa) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train(device, steps, big, sdpa, amp):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    vocabulary, width, heads, layers, length = (512, 256, 8, 4, 128) if big else (128, 64, 4, 2, 32)
    model = GPT(vocabulary, width, heads, layers, length, sdpa)
    ids = torch.randint(0, vocabulary, (8, length + 1)).to(device)
    model = model.to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, seconds = [], []
    for _ in range(steps):
        start = time.process_time()
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=amp):
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.float().view(-1, vocabulary), ids[:, 1:].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
        seconds.append(time.process_time() - start)
    return losses, seconds


if __name__ == "__main__":
    flags = {word for word in sys.argv[1:] if word.startswith("--")}
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    device, steps = words[0], int(words[1]) if len(words) > 1 else 20
    losses, seconds = train(device, steps, "--big" in flags, "--sdpa" in flags, "--amp" in flags)
    print(json.dumps({"device": device, "losses": losses, "seconds": seconds}))
