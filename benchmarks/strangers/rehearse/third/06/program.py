"""Weights are put into a pool of their own; the loader frees the cache after each shard."""
import torch
import torch_npu  # noqa: F401

torch.npu.set_device(0)
pool = torch.npu.MemPool()
weights = []
with torch.npu.use_mem_pool(pool):
    for _ in range(4):
        staging = torch.randn(1024, 1024, device="npu")
        weights.append(staging.to(torch.bfloat16))
        del staging
        torch.npu.empty_cache()
print(len(weights), torch.npu.memory_allocated())
