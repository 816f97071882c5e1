"""Attention metadata of a decode loop: lengths are read from the device at every step."""
import torch
import torch_npu  # noqa: F401

torch.npu.set_device(0)
requests, tokens, hidden = 8, 64, 256
query_start_loc = torch.arange(0, tokens + 1, tokens // requests, dtype=torch.int32, device="npu")
weight = torch.randn(hidden, hidden, device="npu")
last_rows = [8 * (i + 1) - 1 for i in range(requests)]


def step(x):
    for i in range(requests):
        begin, end = query_start_loc[i].item(), query_start_loc[i + 1].item()
        x[begin:end] = torch.relu(x[begin:end] @ weight)
    return x[last_rows]


x = torch.randn(tokens, hidden, device="npu")
for _ in range(5):
    out = step(x)
torch.npu.synchronize()
print(out.shape)
