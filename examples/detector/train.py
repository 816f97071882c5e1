"""A two-stage detector of squares and discs: proposals, suppression, a head on cropped features.

    python train.py --steps 300
    python train.py --device cpu --steps 3
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from boxes import crop, overlap, suppress

SIZE, STRIDE, ANCHOR = 64, 8, 16.0


def scene(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """An image [3, 64, 64], boxes [N, 4] and labels [N] (0 square, 1 disc)."""
    image = torch.rand(3, SIZE, SIZE, generator=generator) * 0.2
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    boxes, labels = [], []
    for _ in range(int(torch.randint(1, 4, (), generator=generator))):
        half = int(torch.randint(5, 10, (), generator=generator))
        y, x = torch.randint(half, SIZE - half, (2,), generator=generator).tolist()
        label = int(torch.randint(2, (), generator=generator))
        square = ((rows - y).abs() <= half) & ((columns - x).abs() <= half)
        disc = (rows - y) ** 2 + (columns - x) ** 2 <= half**2
        image[label, disc if label else square] += 0.7
        boxes.append([x - half, y - half, x + half, y + half])
        labels.append(label)
    return image, torch.tensor(boxes, dtype=torch.float32), torch.tensor(labels)


class Detector(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inner, outer in ((3, width), (width, width), (width, width)):
            layers += [nn.Conv2d(inner, outer, 3, 2, 1), nn.BatchNorm2d(outer), nn.ReLU()]
        self.backbone = nn.Sequential(*layers)
        self.objectness, self.shift = nn.Conv2d(width, 1, 1), nn.Conv2d(width, 4, 1)
        self.head = nn.Sequential(nn.Linear(width * 9, 64), nn.ReLU(), nn.Linear(64, 3))

    def anchors(self, device: torch.device) -> torch.Tensor:
        at = (torch.arange(SIZE // STRIDE, device=device) + 0.5) * STRIDE
        y, x = torch.meshgrid(at, at, indexing="ij")
        middle = torch.stack((x, y, x, y), 2).view(-1, 4)
        return middle + torch.tensor([-1.0, -1.0, 1.0, 1.0], device=device) * ANCHOR / 2

    def propose(self, image: torch.Tensor):
        features = self.backbone(image[None])
        scores = self.objectness(features).flatten()
        shifts = self.shift(features)[0].permute(1, 2, 0).reshape(-1, 4)
        boxes = (self.anchors(image.device) + shifts * ANCHOR).clamp(0, SIZE)
        return features, scores, boxes

    def classify(self, features: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        return self.head(crop(features, boxes, 3, 1 / STRIDE).flatten(1))


def losses(model: Detector, image: torch.Tensor, truth: torch.Tensor, labels: torch.Tensor):
    features, scores, boxes = model.propose(image)
    best, which = overlap(model.anchors(image.device), truth).max(1)
    positive = best > 0.3
    wanted = positive.float()
    proposal = F.binary_cross_entropy_with_logits(scores, wanted)
    # One row per anchor that lies on something: how many is known on the device only.
    shift = F.smooth_l1_loss(boxes[positive], truth[which[positive]], reduction="sum") / (
        positive.sum().clamp(min=1) * SIZE
    )
    kept = suppress(boxes.detach(), scores.detach(), 0.7)[:16]
    regions = torch.cat((boxes[kept].detach(), truth))
    best, which = overlap(regions, truth).max(1)
    target = torch.where(best > 0.5, labels[which], 2)
    return proposal + shift + F.cross_entropy(model.classify(features, regions), target)


@torch.no_grad()
def found(model: Detector, scenes, device: torch.device) -> float:
    """Share of the true boxes that a detection of the right class covers by half."""
    model.eval()
    hits = total = 0
    for image, truth, labels in scenes:
        features, scores, boxes = model.propose(image.to(device))
        kept = suppress(boxes, scores, 0.5)[:8]
        classes = model.classify(features, boxes[kept]).argmax(1).cpu()
        covered = overlap(truth, boxes[kept].cpu()) > 0.5
        hits += int((covered & (classes[None] == labels[:, None])).any(1).sum())
        total += len(truth)
    model.train()
    return hits / total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--images", type=int, default=4, help="per step")
    parser.add_argument("--out", type=Path, default=Path("out"))
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Detector().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, max(args.steps, 2))
    args.out.mkdir(parents=True, exist_ok=True)
    with open(args.out / "metrics.jsonl", "w") as log:
        for step in range(args.steps):
            optimizer.zero_grad()
            total = torch.zeros((), device=device)
            for _ in range(args.images):
                image, truth, labels = (part.to(device) for part in scene(generator))
                total = total + losses(model, image, truth, labels) / args.images
            total.backward()
            optimizer.step()
            scheduler.step()
            log.write(json.dumps({"step": step, "loss": total.item()}) + "\n")
            print(f"step {step} loss {total.item():.4f}", flush=True)
    print(f"found {found(model, [scene(generator) for _ in range(8)], device):.2f}")


if __name__ == "__main__":
    main()
