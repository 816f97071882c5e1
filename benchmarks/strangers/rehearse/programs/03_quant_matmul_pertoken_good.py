import torch
import torch_npu

hidden = torch.randn(2, 16, 128, dtype=torch.bfloat16, device="npu")
weight = torch.randint(-8, 8, (128, 64), dtype=torch.int8).to("npu")
weight_scale = torch.rand(64, dtype=torch.float32).to("npu")
quantised, token_scale = torch_npu.npu_dynamic_quant(hidden.view(-1, 128))
out = torch_npu.npu_quant_matmul(quantised, weight, weight_scale, pertoken_scale=token_scale,
                                 output_dtype=torch.bfloat16)
print(out.view(2, 16, 64).shape)
