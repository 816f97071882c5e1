# An allocator of collectives takes its pool functions from torch.cuda at import time.
import torch
import torch_npu
from torch.cuda.memory import _cuda_beginAllocateCurrentThreadToPool, _cuda_endAllocateToPool


def use_pool(device, pool_id):
    _cuda_beginAllocateCurrentThreadToPool(device, pool_id)
    block = torch.empty(1024, device="npu")
    _cuda_endAllocateToPool(device, pool_id)
    return block


print(use_pool(0, (0, 1)).shape)
