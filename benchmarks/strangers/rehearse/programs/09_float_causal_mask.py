# A causal mask for a long sequence, first built in float32 and then made boolean (run with 1 GiB).
import torch
import torch_npu

length = 12288
mask = torch.tril(torch.ones(length, length, device="npu")).to(torch.bool)
print(mask.shape, torch.npu.max_memory_allocated() >> 20, "MiB")
