# torchrun --nproc-per-node 2: the scales of an expert's weights change places between two cards.
import os

import torch
import torch.distributed as dist
import torch_npu

rank = int(os.environ["LOCAL_RANK"])
torch.npu.set_device(rank)
dist.init_process_group("hccl")
scale = torch.full((64,), 127, dtype=torch.uint8, device="npu").view(torch.float8_e8m0fnu)
outgoing = scale
incoming = torch.empty_like(scale)
peer = 1 - rank
work = dist.batch_isend_irecv([dist.P2POp(dist.isend, outgoing, peer),
                               dist.P2POp(dist.irecv, incoming, peer)])
for each in work:
    each.wait()
print(incoming.view(torch.uint8).sum().item())
dist.destroy_process_group()
