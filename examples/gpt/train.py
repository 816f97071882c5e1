"""Train a small GPT on sums: one GPU, several with torchrun, or the CPU.

    python train.py --steps 400
    torchrun --nproc-per-node 4 train.py
    python train.py --device cpu --steps 20
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import checkpoint
from data import CHARACTERS, Sums, decode, encode
from model import GPT, GPTConfig


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small GPT on sums.")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    parser.add_argument("--backend", default="nccl", help="collective backend for torchrun")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=64, help="rows per process")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--no-amp", action="store_true", help="train in float32")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=200)
    parser.add_argument("--eval-sums", type=int, default=64, help="sums to ask for at the end")
    parser.add_argument("--out", type=Path, default=Path("out"))
    return parser.parse_args()


def set_up(args: argparse.Namespace) -> tuple[torch.device, int, int]:
    """Join the process group if torchrun started us; returns device, rank and world size."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    device = torch.device(args.device)
    if world > 1:
        import torch.distributed.nn.functional as _  # later, its defaults would keep the group
        dist.init_process_group(args.backend if device.type == "cuda" else "gloo")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise SystemExit("no CUDA device; use --device cpu")
        local = int(os.environ.get("LOCAL_RANK", device.index or 0))
        torch.cuda.set_device(local)
        device = torch.device(f"cuda:{local}")
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    return device, rank, world


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """Linear warm-up over a tenth of the steps, then a cosine to a tenth of the peak."""
    warm = max(1, args.steps // 10)
    if step < warm:
        return args.lr * (step + 1) / warm
    progress = (step - warm) / max(1, args.steps - warm)
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


def batches(loader: DataLoader, sampler: DistributedSampler | None):
    """Batches without end; every epoch in another order."""
    epoch = 0
    while True:
        if sampler is not None:
            sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def memory_mib(device: torch.device) -> float | None:
    """Peak memory of the device so far, in MiB."""
    if device.type != "cuda":
        return None
    return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)


@torch.no_grad()
def accuracy(model: GPT, device: torch.device, count: int) -> float:
    """Share of unseen sums that the model gets right, greedily."""
    model.eval()
    generator = torch.Generator().manual_seed(12345)
    right = 0
    for a, b in torch.randint(100, (count, 2), generator=generator).tolist():
        prompt = torch.tensor([encode(f"{a}+{b}=")], device=device)
        text = decode(model.generate(prompt, 4)[0].tolist())
        right += text.split("=")[1].split(";")[0] == str(a + b)[::-1]
    model.train()
    return right / count


def train(args: argparse.Namespace) -> None:
    device, rank, world = set_up(args)
    seed_all(args.seed)
    on_gpu = device.type == "cuda"
    use_amp = on_gpu and not args.no_amp

    config = GPTConfig(
        vocab_size=len(CHARACTERS), context=args.context, layers=args.layers, width=args.width
    )
    model = GPT(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=on_gpu)
    scaler = GradScaler("cuda", enabled=use_amp)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "checkpoint.pt"
    start = checkpoint.load(path, model, optimizer, scaler, device) if args.resume else 0
    wrapped = model
    if world > 1:
        wrapped = DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None)

    # A resumed run goes on with sums that it has not seen.
    rows = Sums(args.batch_size * args.steps * world, args.context, args.seed + start)
    sampler = DistributedSampler(rows, seed=args.seed) if world > 1 else None
    loader = DataLoader(
        rows,
        batch_size=args.batch_size,
        sampler=sampler,
        num_workers=args.workers,
        pin_memory=on_gpu,
        drop_last=True,
    )
    source = batches(loader, sampler)
    log = open(args.out / "metrics.jsonl", "a" if args.resume else "w") if rank == 0 else None
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.synchronize()
    began, tokens_done = time.perf_counter(), 0

    for step in range(start, args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        tokens, targets = next(source)
        tokens = tokens.to(device, non_blocking=True)
        targets = targets.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):
            _, loss = wrapped(tokens, targets)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        tokens_done += tokens.numel() * world

        if step % args.log_every == 0 or step == args.steps - 1:
            if world > 1:
                loss = loss.detach() / world
                dist.all_reduce(loss)
            if on_gpu:
                torch.cuda.synchronize()
            if log is not None:
                record = {
                    "step": step,
                    "loss": round(loss.item(), 5),
                    "tokens_per_s": round(tokens_done / (time.perf_counter() - began)),
                    "peak_mib": memory_mib(device),
                    "device": str(device),
                }
                log.write(json.dumps(record) + "\n")
                log.flush()
                print(" ".join(f"{key} {value}" for key, value in record.items()), flush=True)
        if rank == 0 and (step + 1) % args.save_every == 0:
            checkpoint.save(path, model, optimizer, scaler, step + 1)

    if rank == 0:
        checkpoint.save(path, model, optimizer, scaler, args.steps)
        log.close()
        if args.eval_sums:
            print(f"accuracy {accuracy(model, device, args.eval_sums):.2f} on unseen sums")
    if on_gpu:
        torch.cuda.empty_cache()


if __name__ == "__main__":
    train(parse())
    if dist.is_initialized():  # the model is gone, which held the group
        dist.destroy_process_group()
