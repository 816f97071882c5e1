"""Embedding of speculative tokens: rejected ones stand as -1 in the padded batch."""
import torch
import torch_npu  # noqa: F401

torch.npu.set_device(0)
embedding = torch.nn.Embedding(32000, 128).to("npu")
token_ids = torch.randint(0, 32000, (4, 5), device="npu", dtype=torch.int32)
token_ids[1, 3:] = -1
with torch.no_grad():
    hidden = embedding(token_ids)
print(hidden.shape, hidden.abs().mean().item())
