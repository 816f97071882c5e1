# How often each token occurred, for a repetition penalty: counts in int64.
import torch
import torch_npu

vocabulary = 1024
tokens = torch.randint(0, vocabulary, (8, 64)).to("npu")
counts = torch.zeros(8, vocabulary + 1, dtype=torch.long, device="npu")
counts.scatter_add_(1, tokens, torch.ones_like(tokens))
print((counts > 0).sum().item())
