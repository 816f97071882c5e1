"""Two ranks that call different collectives; each prints the error that it gets."""

import sys

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401

dist.init_process_group("hccl")
rank = dist.get_rank()
torch.npu.set_device(rank)
dist.all_reduce(torch.ones(3, device="npu"))
try:
    if sys.argv[1] == "dtype":
        dist.reduce(torch.ones(1, device="npu", dtype=(torch.float32, torch.int32)[rank]), 0)
    elif sys.argv[1] == "size":
        dist.all_reduce(torch.ones((4, 5)[rank], device="npu"))
    elif sys.argv[1] == "root":
        dist.broadcast(torch.ones(2, device="npu"), rank)
    else:
        dist.all_reduce(torch.ones(2, device="npu"), op=(dist.ReduceOp.SUM, dist.ReduceOp.MAX)[rank])
    torch.npu.synchronize()
    print("nothing")
except RuntimeError as error:
    print(next(line for line in str(error).splitlines() if "rehearsal:" in line))
