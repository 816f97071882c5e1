# Weights that were just computed are packed on a stream of their own before they are broadcast.
import torch
import torch_npu

packer = torch.npu.Stream()
base = torch.randn(256, 256, device="npu")
weights = [base @ base, base * 0.5, base + 1]
packer.synchronize()
with torch.npu.stream(packer):
    packed = torch.cat([w.reshape(-1) for w in weights])
packer.synchronize()
print(packed.shape)
