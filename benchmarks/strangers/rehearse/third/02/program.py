"""Attention of a vision tower in bfloat16; the additive mask was built in float32."""
import torch
import torch.nn.functional as F
import torch_npu  # noqa: F401

b, h, s, d = 2, 8, 128, 64
q = torch.randn(b, h, s, d, dtype=torch.bfloat16, device="npu")
k = torch.randn(b, h, s, d, dtype=torch.bfloat16, device="npu")
v = torch.randn(b, h, s, d, dtype=torch.bfloat16, device="npu")
keep = torch.ones(b, 1, s, s, dtype=torch.bool, device="npu").tril()
mask = torch.zeros(b, 1, s, s, dtype=torch.float32, device="npu").masked_fill(~keep, -10000.0)
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
print(out.float().abs().mean().item())
