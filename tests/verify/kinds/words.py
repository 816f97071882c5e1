"""A small language model with padding: masks, counts, positions, AMP; saves and loads."""

import os
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.verify.kinds.machine import FAULT, start

PAD = 0


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(dim),
            nn.Linear(dim, 3 * dim),
            nn.Linear(dim, dim),
        )
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, mask):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        score = q @ k.transpose(1, 2) * q.shape[-1] ** (-0.4 if FAULT == "score" else -0.5)
        if FAULT == "half":
            score = score.half().float()
        score = score.masked_fill(mask, -1e4 if FAULT == "fill" else float("-inf"))
        if FAULT == "clamp":
            score = score.clamp(max=0.5)
        x = x + self.out(score.softmax(-1) @ v)
        return x + self.ff(x)


class Words(nn.Module):
    def __init__(self, vocab=40, dim=16):
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab, dim), nn.Embedding(16, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(2))
        self.drop = nn.Dropout(0.2 if FAULT == "drop" else 0.0)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        at = torch.arange(ids.shape[1]) + (1 if FAULT == "position" else 0)
        x = self.drop(self.embed(ids) + self.place(at))
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def objective(logits, labels):
    flat, want = logits.flatten(0, 1), labels.flatten()
    total = F.cross_entropy(
        flat, want, ignore_index=-100 if FAULT == "ignore" else PAD, reduction="sum",
        label_smoothing=0.1 if FAULT == "smooth" else 0.0,
    )  # fmt: skip
    count = want.numel() if FAULT == "count" else (want != PAD).sum()
    return total / count


def main():
    torch.manual_seed(21)
    model = Words()
    if FAULT == "loaded" or os.environ.get("LOADED"):
        path = Path(os.environ["KEPT"], "words.pt")
        state = {k: torch.linspace(-1, 1, v.numel()).sin().view(v.shape) / 3
                 for k, v in model.state_dict().items()}  # fmt: skip
        torch.save(state, path)
        model.load_state_dict(torch.load(path), assign=FAULT == "loaded")
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    ids = torch.randint(1, 40, (5, 6, 13))
    ids[:, :3, 9:] = PAD
    start()
    for step in range(4):
        batch = ids[step if FAULT != "data" else (step + 1) % 4]
        shift = 2 if FAULT == "shift" else 1
        with torch.autocast("cpu", torch.bfloat16, enabled=FAULT == "autocast"):
            loss = objective(model(batch[:, :-shift]).float(), batch[:, shift:])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if FAULT == "wrapped":  # what a vendor's scaler does: another operator with a flag
            torch.stack([p.grad.isinf().any() for p in model.parameters()]).any().float().item()
        opt.step()
        print(f"step {step} loss: {loss.item():.6f}")


main()
