# Sequence parallelism left this rank with 5 of the model's 20 heads; the call still says 20.
import torch
import torch_npu

model_heads, ranks = 20, 4
local = [torch.randn(1, model_heads // ranks, 256, 128, dtype=torch.bfloat16, device="npu")
         for _ in range(3)]
out, _ = torch_npu.npu_fused_infer_attention_score(
    *local, num_heads=model_heads, input_layout="BNSD", scale=128 ** -0.5)
print(out.shape)
