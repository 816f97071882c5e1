"""Attention metadata of a decode loop: lengths have a mirror on the host, rows an index on the device."""
import torch
import torch_npu  # noqa: F401

torch.npu.set_device(0)
requests, tokens, hidden = 8, 64, 256
starts = list(range(0, tokens + 1, tokens // requests))
weight = torch.randn(hidden, hidden, device="npu")
last_rows = torch.tensor([8 * (i + 1) - 1 for i in range(requests)], device="npu")


def step(x):
    for begin, end in zip(starts, starts[1:]):
        x[begin:end] = torch.relu(x[begin:end] @ weight)
    return x.index_select(0, last_rows)


x = torch.randn(tokens, hidden, device="npu")
for _ in range(5):
    out = step(x)
torch.npu.synchronize()
print(out.shape)
