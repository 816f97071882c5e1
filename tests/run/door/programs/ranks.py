"""Two processes under NCCL and DistributedDataParallel."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("nccl")
torch.cuda.set_device(rank)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 2).cuda(rank), device_ids=[rank])
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
data = torch.randn(4, 8, 4, generator=torch.Generator().manual_seed(rank))
for x in data:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    if rank == 0:
        print(f"loss {mean.item():.6f} on {mean.device} by {dist.get_backend()}")
dist.barrier(device_ids=[rank])
dist.destroy_process_group()
