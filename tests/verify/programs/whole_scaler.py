"""A classifier with a gradient scaler, groups of weights with and without decay, label smoothing,
accumulation, an average that is swapped in for validation, and a checkpoint that is loaded halfway."""

import io
import math
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")
DTYPE = torch.bfloat16 if MODE == "bfloat16" else torch.float32
PARTS, EPOCHS, CLASSES = 2, 4, 5


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 32), nn.Linear(32, width)
        self.gate = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x):
        return x + self.gate * self.down(F.silu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Linear(12, 16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(2))
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def made(count, seed):
    g = torch.Generator().manual_seed(seed)
    y = (torch.rand(count, generator=g) ** 2 * CLASSES).long()
    return torch.randn(count, 12, generator=g) + 1.5 * F.one_hot(y, 12), y


def macro_f1(guess, y):
    total = 0.0
    for c in range(CLASSES):
        hit = ((guess == c) & (y == c)).sum()
        total += (2 * hit / ((guess == c).sum() + (y == c).sum()).clamp_min(1)).item()
    return total / CLASSES


x, y = made(72, 1)
held_x, held_y = made(40, 2)
weight = 1.0 / torch.bincount(y, minlength=CLASSES).clamp_min(1).float()
sampler = WeightedRandomSampler(weight[y], 40, generator=torch.Generator().manual_seed(3))
loader = DataLoader(TensorDataset(x, y), batch_size=8, sampler=sampler)
net = Net(CLASSES).to(DTYPE)
plain = [p for n, p in net.named_parameters() if p.dim() < 2 or n.endswith("gate")]
decayed = [p for n, p in net.named_parameters() if p.dim() >= 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
optimiser = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
total = EPOCHS * math.ceil(len(loader) / PARTS)
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimiser, lambda s: (s + 1) / 3 if s < 3 else 0.5 * (1 + math.cos(math.pi * (s - 3) / (total - 3)))
)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=4, enabled=MODE != "bfloat16")
average = {n: p.detach().float().clone() for n, p in net.named_parameters()}
best, waited, updates, saved = -1.0, 0, 0, None
for epoch in range(EPOCHS):
    net.train()
    if epoch == 2:  # go on from what was saved, with another head
        held = torch.load(io.BytesIO(saved))
        net.load_state_dict({n: t for n, t in held["net"].items() if not n.startswith("head")}, strict=False)
        optimiser.load_state_dict(held["optimiser"])
    seen = 0.0
    for number, (rows, wanted) in enumerate(loader):
        with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
            logits = net((rows + 0.05 * torch.randn_like(rows)).to(DTYPE))
        loss = F.cross_entropy(logits.float(), wanted, label_smoothing=0.1, reduction="sum") / len(rows)
        seen += loss.item() * len(rows)
        last = number + 1 == len(loader)
        parts = PARTS if not last or len(loader) % PARTS == 0 else len(loader) % PARTS
        scaler.scale(loss / parts).backward()
        if (number + 1) % PARTS and not last:
            continue
        scaler.unscale_(optimiser)
        nn.utils.clip_grad_norm_(net.parameters(), 1.5)
        scaler.step(optimiser)
        scaler.update()
        optimiser.zero_grad(set_to_none=True)
        schedule.step()
        updates += 1
        decay = min(0.9, (1 + updates) / (10 + updates))
        with torch.no_grad():
            for n, p in net.named_parameters():
                average[n].lerp_(p.float(), 1 - decay)
    kept = {n: p.detach().clone() for n, p in net.named_parameters()}
    with torch.no_grad():
        for n, p in net.named_parameters():
            p.copy_(average[n])
    net.eval()
    with torch.inference_mode():
        out = net(held_x.to(DTYPE)).float()
    score = macro_f1(out.argmax(-1), held_y)
    with torch.no_grad():
        for n, p in net.named_parameters():
            p.copy_(kept[n])
    if epoch == 0:
        buffer = io.BytesIO()
        torch.save({"net": net.state_dict(), "optimiser": optimiser.state_dict()}, buffer)
        saved = buffer.getvalue()
    best, waited = (score, 0) if score > best else (best, waited + 1)
    print(f"epoch {epoch} loss {seen / 40:.4f} f1 {score:.4f} nll {F.cross_entropy(out, held_y).item():.5f}")
