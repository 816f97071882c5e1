import torch
import torch_npu

length = 12288
mask = torch.tril(torch.ones(length, length, dtype=torch.bool, device="npu"))
print(mask.shape, torch.npu.max_memory_allocated() >> 20, "MiB")
