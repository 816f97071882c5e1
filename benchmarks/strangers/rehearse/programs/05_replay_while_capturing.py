# A sub-model owns a graph of its own and replays it while the outer model is being captured.
import torch
import torch_npu

x = torch.ones(4, 8, device="npu")
inner = torch.npu.NPUGraph()
with torch.npu.graph(inner):
    y = x * 2

outer = torch.npu.NPUGraph()
with torch.npu.graph(outer):
    z = x + 1
    inner.replay()
    out = z + y
outer.replay()
torch.npu.synchronize()
print(out.sum().item())
