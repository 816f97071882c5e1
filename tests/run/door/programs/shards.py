"""A module in shards on two cards; `cpu` as an argument runs the same without any door."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

device = "cpu" if sys.argv[1:] == ["cpu"] else "cuda"
rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("gloo" if device == "cpu" else "nccl")
if device == "cuda":
    torch.cuda.set_device(rank)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
model.to(device)
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
dist.destroy_process_group()
