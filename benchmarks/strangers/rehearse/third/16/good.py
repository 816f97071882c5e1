"""Copies positions to the device before each step: the whole buffer."""
import torch
import torch_npu  # noqa: F401

torch.npu.set_device(0)
max_tokens = 4096
host = torch.zeros(3, max_tokens + 1, dtype=torch.int64).pin_memory()
device = torch.zeros(3, max_tokens + 1, dtype=torch.int64, device="npu")
weight = torch.randn(3, 64, device="npu")


def step(n):
    host[:, :n] = torch.arange(n)
    device.copy_(host, non_blocking=True)
    return device[:, :n].float().t() @ weight


for _ in range(5):
    out = step(17)
    torch.npu.synchronize()
print(out.shape)
