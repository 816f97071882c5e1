import torch
import torch_npu

x = torch.ones(4, 8, device="npu")


def predictor(t):
    return t * 2


outer = torch.npu.NPUGraph()
with torch.npu.graph(outer):
    z = x + 1
    y = predictor(x)
    out = z + y
outer.replay()
torch.npu.synchronize()
print(out.sum().item())
