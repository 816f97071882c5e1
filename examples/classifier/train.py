"""Train an image classifier on several GPUs: torchrun --nproc-per-node 4 train.py

    python train.py --steps 200            # one GPU
    python train.py --device cpu --steps 5
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MEAN, STD = 0.5, 0.25


class Shapes(Dataset):
    """Bars and discs in noise: 4 classes of 3 x 32 x 32 images, made on the fly."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        label = int(torch.randint(4, (), generator=generator))
        image = torch.rand(3, 32, 32, generator=generator) * 0.3
        at = int(torch.randint(8, 24, (), generator=generator))
        rows, columns = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
        mask = {
            0: (rows - at).abs() < 3,
            1: (columns - at).abs() < 3,
            2: (rows - columns).abs() < 3,
            3: (rows - at) ** 2 + (columns - at) ** 2 < 36,
        }[label]
        image[:, mask] += 0.6
        return (image - MEAN) / STD, label


class Block(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.short = nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.short(x))


class Net(nn.Module):
    def __init__(self, width: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1)
        self.blocks = nn.Sequential(Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2))
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def top1(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Share of right answers. Summed in double, so that long epochs don't lose counts."""
    return (logits.argmax(1) == labels).double().mean()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out"))
    args = parser.parse_args()
    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    local = int(os.environ.get("LOCAL_RANK", 0))
    on_gpu = args.device == "cuda"
    if on_gpu:
        torch.cuda.set_device(local)
        device = torch.device("cuda", local)
        torch.backends.cudnn.benchmark = True
    else:
        device = torch.device(args.device)
    if world > 1:
        import torch.distributed.nn.functional as _  # later, its defaults would keep the group
        dist.init_process_group(backend="nccl" if on_gpu else "gloo")
    torch.manual_seed(args.seed)

    model = Net()
    if world > 1 and on_gpu:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.to(device)
    if on_gpu:
        model = model.to(memory_format=torch.channels_last)
    if world > 1:
        model = DDP(model, device_ids=[local] if on_gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    scaler = torch.cuda.amp.GradScaler(enabled=on_gpu)
    data = Shapes(args.steps * args.batch_size * world, args.seed)
    sampler = DistributedSampler(data, shuffle=False) if world > 1 else None
    loader = DataLoader(data, args.batch_size, sampler=sampler, pin_memory=on_gpu)

    args.out.mkdir(parents=True, exist_ok=True)
    log = open(args.out / "metrics.jsonl", "w") if rank == 0 else None
    for step, (images, labels) in enumerate(loader):
        images = images.cuda(non_blocking=True) if on_gpu else images
        labels = labels.cuda(non_blocking=True) if on_gpu else labels
        with torch.cuda.amp.autocast(enabled=on_gpu):
            logits = model(images)
            loss = F.cross_entropy(logits, labels, label_smoothing=0.1)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        accuracy = top1(logits, labels)
        if world > 1:
            dist.all_reduce(accuracy)
            accuracy /= world
        if log is not None:
            row = {"step": step, "loss": loss.item(), "accuracy": accuracy.item()}
            log.write(json.dumps(row) + "\n")
            print(f"step {step} loss {row['loss']:.4f} accuracy {row['accuracy']:.2f}", flush=True)
    if rank == 0:
        state = model.module.state_dict() if world > 1 else model.state_dict()
        torch.save(state, args.out / "model.pt")


if __name__ == "__main__":
    main()
    if dist.is_initialized():  # the model is gone, which held the group
        dist.destroy_process_group()
