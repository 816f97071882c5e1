# Attention of a vision model that calls xformers whatever the device.
import torch
import torch_npu
import xformers.ops as xops

q, k, v = (torch.randn(1, 1025, 16, 64, device="npu") for _ in range(3))
print(xops.memory_efficient_attention(q, k, v).shape)
