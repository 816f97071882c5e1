import torch
import torch_npu

vocabulary = 1024
tokens = torch.randint(0, vocabulary, (8, 64)).to("npu").to(torch.int32)
counts = torch.zeros(8, vocabulary + 1, dtype=torch.int32, device="npu")
counts.scatter_add_(1, tokens, torch.ones_like(tokens))
print((counts > 0).sum().item())
