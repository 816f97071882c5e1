import torch
import torch_npu

batch, heads, length, width = 1, 8, 128, 128
query = torch.randn(batch, heads, length, width, dtype=torch.bfloat16, device="npu")
packed = torch.randn(batch, heads, length, 2 * width, dtype=torch.bfloat16, device="npu")
key, value = packed[..., :width].contiguous(), packed[..., width:].contiguous()
out, _ = torch_npu.npu_fused_infer_attention_score(
    query, key, value, num_heads=heads, num_key_value_heads=heads,
    input_layout="BNSD", scale=width ** -0.5)
print(out.shape)
