import torch
import torch_npu
from torch.nn.functional import scaled_dot_product_attention

q, k, v = (torch.randn(1, 16, 1025, 64, dtype=torch.float16, device="npu") for _ in range(3))
print(scaled_dot_product_attention(q, k, v).shape)
