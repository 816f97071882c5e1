"""A training loop with mixed precision and loss scaling, written for CUDA."""

import torch
import torch.nn as nn
from torch.cuda.amp import GradScaler, autocast


def main():
    torch.manual_seed(0)
    torch.cuda.manual_seed_all(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = GradScaler(init_scale=256.0)
    features = torch.randn(64, 16).cuda(non_blocking=True)
    labels = (features.sum(1) > 0).long()
    for step in range(8):
        with autocast(dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(features), labels)
        optimiser.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimiser)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimiser)
        scaler.update()
        print(f"step {step} loss {loss.item():.4f}")
    torch.cuda.synchronize()
    if next(model.parameters()).device.type != "cuda":
        raise RuntimeError("the model is not on the accelerator")
    print("peak", torch.cuda.max_memory_allocated() > 0, "done")


if __name__ == "__main__":
    main()
