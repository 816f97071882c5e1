# Embeddings at position 0 are cleared with a boolean index inside the captured forward.
import torch
import torch_npu

positions = torch.arange(8, device="npu") % 4
table = torch.randn(8, 32, device="npu")


def forward():
    embeds = table.clone()
    embeds[positions == 0] = 0
    return embeds * 2


forward()
torch.npu.synchronize()
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    out = forward()
graph.replay()
torch.npu.synchronize()
print(out.shape)
