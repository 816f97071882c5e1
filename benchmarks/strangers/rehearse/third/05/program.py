"""Load a transformer for sharded inference: 2 ranks, each has 512 MiB, the model takes 768 MiB."""
import os

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.npu.set_device(rank)
dist.init_process_group("hccl")


def build():
    return torch.nn.ModuleList(torch.nn.Linear(2048, 2048, bias=False) for _ in range(48))


def shard(module):
    for layer in module:
        layer.weight = torch.nn.Parameter(layer.weight.data.chunk(world)[rank].clone(), requires_grad=False)


model = build()
model.to("npu")
shard(model)
print(rank, sum(p.numel() for p in model.parameters()))
dist.destroy_process_group()
