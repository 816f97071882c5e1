"""A small vision transformer under bfloat16 autocast; gradients of two pieces add up, warm-up and cosine for the rate."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(101)
device = "cuda" if torch.cuda.is_available() else "cpu"
PIECES, UPDATES, WARM, WIDE, HEADS, CLASSES = 2, 4, 2, 48, 4, 7


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDE, 3 * WIDE)
        self.out = nn.Linear(WIDE, WIDE)

    def forward(self, x):
        n, tokens, _ = x.shape
        query, key, value = self.qkv(x).view(n, tokens, 3, HEADS, WIDE // HEADS).permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-2, -1)) * (WIDE // HEADS) ** -0.5
        mixed = scores.float().softmax(dim=-1).to(value.dtype) @ value
        return self.out(mixed.transpose(1, 2).reshape(n, tokens, WIDE))


class DropPath(nn.Module):
    """Leaves out a branch for some samples while training."""

    def __init__(self, share):
        super().__init__()
        self.share = share

    def forward(self, x):
        if not self.training or self.share == 0:
            return x
        keep = torch.rand(x.shape[0], 1, 1, device=x.device) >= self.share
        return x * keep / (1 - self.share)


class Block(nn.Module):
    def __init__(self, share):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDE)
        self.attention = Attention()
        self.drop1 = DropPath(share)
        self.norm2 = nn.LayerNorm(WIDE)
        self.mlp = nn.Sequential(nn.Linear(WIDE, 2 * WIDE), nn.GELU(), nn.Linear(2 * WIDE, WIDE))
        self.drop2 = DropPath(share)

    def forward(self, x):
        x = x + self.drop1(self.attention(self.norm1(x)))
        return x + self.drop2(self.mlp(self.norm2(x)))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, WIDE, 2, stride=2)
        self.place = nn.Parameter(torch.randn(1, 256, WIDE) * 0.02)
        self.blocks = nn.ModuleList([Block(0.1), Block(0.2)])
        self.norm = nn.LayerNorm(WIDE)
        self.head = nn.Linear(WIDE, CLASSES)

    def forward(self, images):
        x = self.patch(images).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            x = block(x)
        pooled = self.norm(x).to(torch.bfloat16).mean(dim=1)
        return self.head(pooled)


def rate(update):
    """Share of the full rate: up in WARM updates, then down along a cosine."""
    if update < WARM:
        return (update + 1) / (WARM + 1)
    return 0.5 * (1 + math.cos(math.pi * (update - WARM) / (UPDATES - WARM)))


def evaluate(model, images, labels):
    """Loss over held-out images."""
    model.eval()
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        loss = F.cross_entropy(model(images.to(device)).float(), labels.to(device))
    model.train()
    return loss.item()


model = ViT().to(device)
decayed = [p for p in model.parameters() if p.ndim > 1]
others = [p for p in model.parameters() if p.ndim <= 1]
groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=3e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
labels = torch.randint(0, CLASSES, (UPDATES * PIECES * 4 + 16,))
images = torch.randn(len(labels), 3, 32, 32) + 0.3 * labels[:, None, None, None] / CLASSES

for update in range(UPDATES):
    shown = 0.0
    optimizer.zero_grad()
    for piece in range(PIECES):
        first = (update * PIECES + piece) * 4
        batch, wanted = images[first: first + 4].to(device), labels[first: first + 4].to(device)
        with torch.autocast(device, dtype=torch.bfloat16):
            scores = model(batch)
        loss = F.cross_entropy(scores.float(), wanted) / PIECES
        loss.backward()
        shown += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    print(f"update {update} loss {shown:.6f}", flush=True)
    if update == 0:
        print(f"held out {evaluate(model, images[-16:], labels[-16:]):.6f}", flush=True)

print(f"held out {evaluate(model, images[-16:], labels[-16:]):.6f}")
