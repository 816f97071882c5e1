"""Data-parallel training over NCCL, written for torchrun on CUDA."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


def main():
    backend = "nccl" if dist.is_nccl_available() else "gloo"
    dist.init_process_group(backend=backend)
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device(f"cuda:{rank}")
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 2).to(device), device_ids=[rank])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        batch = torch.full((4, 8), float(rank + step), device=device)
        loss = model(batch).square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if dist.get_backend() != "nccl" or not total.is_cuda:
        raise RuntimeError("gradients did not go over the accelerator's collectives")
    if rank == 0:
        print(f"total {total.item():.6f} over {dist.get_world_size()} ranks done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
