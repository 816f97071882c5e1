"""A detector: batches from a Python generator, boxes in nested lists, a model in DataParallel, focal
and overlap losses with smoothed labels, boxes put in order and thinned out (NMS), average precision."""

import os

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")
kind = torch.bfloat16 if MODE == "bfloat16" else torch.float32
CELLS, CLASSES = 9, 4


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.SiLU())
        self.pool = nn.AdaptiveAvgPool2d(3)
        self.drop = nn.Dropout(0.1)
        self.kinds, self.boxes = nn.Conv2d(16, CLASSES, 1), nn.Conv2d(16, 4, 1)

    def forward(self, x):
        h = self.drop(self.pool(self.body(x)))
        return {"kinds": self.kinds(h).flatten(2).mT, "boxes": self.boxes(h).flatten(2).mT.sigmoid()}


def pictures(first, count):
    """Batches: pictures, and for each the boxes [cell, class, x, y, w, h] in it."""
    for number in range(first, first + count):
        g = torch.Generator().manual_seed(number)
        x = torch.randn(6, 1, 16, 16, generator=g) * 0.3
        found = []
        for row in range(6):
            many = int(torch.randint(1, 4, (), generator=g))
            cells = torch.randperm(CELLS, generator=g)[:many]
            box = torch.rand(many, 4, generator=g) * 0.5 + 0.25
            what = torch.randint(0, CLASSES, (many,), generator=g)
            for c, w, b in zip(cells.tolist(), what.tolist(), box.tolist()):
                top, left = 5 * (c // 3), 5 * (c % 3)
                x[row, 0, top : top + 5, left : left + 5] += 1.0 + w * b[0]
            found.append((cells, what, box))
        yield x, found


def overlap(a, b):
    """Generalised overlap of boxes given by centre and size."""
    low = torch.maximum(a[..., :2] - a[..., 2:] / 2, b[..., :2] - b[..., 2:] / 2)
    high = torch.minimum(a[..., :2] + a[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2)
    both = (high - low).clamp_min(0).prod(-1)
    either = a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - both
    outer_low = torch.minimum(a[..., :2] - a[..., 2:] / 2, b[..., :2] - b[..., 2:] / 2)
    outer_high = torch.maximum(a[..., :2] + a[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2)
    outer = (outer_high - outer_low).prod(-1)
    return both / either - (outer - either) / outer


plain = Detector().to(kind)
net = nn.DataParallel(plain)
optimiser = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=0.02)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 8e-3, total_steps=10, pct_start=0.3)
count = torch.zeros(CLASSES)
net.train()
for step, (x, found) in enumerate(pictures(0, 10)):
    x = (x - 0.2) / 0.6
    with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
        made = net(x.to(kind))
    logits, boxes = made["kinds"].float(), made["boxes"].float()
    wanted = torch.zeros_like(logits)
    pairs, targets = [], []
    for row, (cells, what, box) in enumerate(found):
        wanted[row, cells, what] = 1.0
        pairs.append(boxes[row, cells])
        targets.append(box)
        count += torch.bincount(what, minlength=CLASSES)
    wanted = wanted * 0.95 + 0.05 / CLASSES
    p = logits.sigmoid()
    focus = (wanted - p).abs() ** 2.0
    right = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none") * focus
    many = max(sum(len(t) for t in targets), 1)
    near = 1 - overlap(torch.cat(pairs), torch.cat(targets))
    l1 = F.smooth_l1_loss(torch.cat(pairs), torch.cat(targets), beta=0.1, reduction="sum") / many
    loss = right.sum() / many + 2.0 * near.mean() + 5.0 * l1
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(net.parameters(), 0.4)
    optimiser.step()
    schedule.step()
    print("step", step, f"{loss.item():.5f}")
net.eval()
weight = count.sum() / (CLASSES * count)
scores, hits, total = [], [], 0
with torch.no_grad():
    for x, found in pictures(50, 3):
        made = net(((x - 0.2) / 0.6).to(kind))
        p, boxes = made["kinds"].float().sigmoid(), made["boxes"].float()
        for row, (cells, what, box) in enumerate(found):
            best, guess = (p[row] * weight.clamp(max=2.0)).max(-1)
            order = best.argsort(descending=True)
            kept = []
            for cell in order.tolist():
                if best[cell] > 0.05 and all(overlap(boxes[row, cell], boxes[row, k]) < 0.6 or guess[cell] != guess[k] for k in kept):
                    kept.append(cell)
            for cell in kept[:5]:
                match = [i for i, c in enumerate(cells.tolist()) if c == cell]
                hits.append(float(bool(match) and int(what[match[0]]) == int(guess[cell])))
                scores.append(float(best[cell]))
            total += len(cells)
ranked = torch.tensor(hits)[torch.tensor(scores).argsort(descending=True)]
precision = ranked.cumsum(0) / torch.arange(1, len(ranked) + 1)
print("ap", f"{float((precision * ranked).sum() / total):.4f}", "kept", len(ranked))
print("score", f"{sum(scores) / len(scores):.5f}")
