# torchrun --nproc-per-node 2: one rank collects a tensor of every rank.
import os

import torch
import torch.distributed as dist
import torch_npu

rank = int(os.environ["LOCAL_RANK"])
torch.npu.set_device(rank)
dist.init_process_group("hccl")
part = torch.full((4,), float(rank), device="npu")
parts = [torch.empty_like(part) for _ in range(dist.get_world_size())] if rank == 0 else None
dist.gather(part, parts, dst=0)
if rank == 0:
    print(torch.cat(parts))
dist.destroy_process_group()
