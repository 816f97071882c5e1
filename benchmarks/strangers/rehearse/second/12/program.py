"""The smallest compiled function on the chip; needs torch-npu 2.9.0 with triton-ascend 3.2."""
import torch
import torch_npu


@torch.compile
def double_and_add(x):
    return x * 2 + 1


print(double_and_add(torch.randn(4, 4, device="npu:0")))
