"""A module in shards on two cards, by `fully_shard` or (`flat`) FullyShardedDataParallel; `cpu` as an
argument runs the same without any door."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

device = "cpu" if "cpu" in sys.argv else "cuda"
rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("gloo" if device == "cpu" else "nccl")
if device == "cuda":
    torch.cuda.set_device(rank)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
model.to(device)
if "flat" in sys.argv:
    model = FullyShardedDataParallel(model, device_id=torch.device(device, rank if device == "cuda" else None))
else:
    fully_shard(model, mesh=init_device_mesh(device, (2,)))
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(3):
    x = torch.full((4, 8), 0.1 * (step + 1 + rank), device=device)
    loss = model(x).square().mean()
    loss.backward()
    optimiser.step()
    optimiser.zero_grad()
    if rank == 0:
        print(f"step {step} loss {loss.item()!r}", flush=True)
dist.barrier()  # a rank that ends early takes gloo's connections away from the other
dist.destroy_process_group()
