# An additive attention bias goes through the helper that was written for keep-masks.
import torch
import torch_npu

q, k, v = (torch.randn(1, 4, 128, 64, dtype=torch.bfloat16, device="npu") for _ in range(3))
bias = torch.randn(1, 4, 128, 128, dtype=torch.bfloat16, device="npu")


def attend(mask):
    blocked = torch.logical_not(mask.bool())
    return torch_npu.npu_fusion_attention(q, k, v, 4, "BNSD", atten_mask=blocked, scale=0.125)[0]


print(attend(bias).float().mean())
