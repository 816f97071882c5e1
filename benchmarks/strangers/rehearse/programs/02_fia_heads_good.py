import torch
import torch_npu

model_heads, ranks = 20, 4
local = [torch.randn(1, model_heads // ranks, 256, 128, dtype=torch.bfloat16, device="npu")
         for _ in range(3)]
out, _ = torch_npu.npu_fused_infer_attention_score(
    *local, num_heads=local[0].shape[1], input_layout="BNSD", scale=128 ** -0.5)
print(out.shape)
