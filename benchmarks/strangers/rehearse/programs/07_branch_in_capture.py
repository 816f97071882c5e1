# The captured forward asks whether all lengths on the device are equal, and branches on the answer.
import torch
import torch_npu

lengths = torch.full((4,), 2, dtype=torch.int32, device="npu")
state = torch.randn(8, 16, dtype=torch.float16, device="npu")


def forward():
    if torch.all(lengths == 2):
        return state.view(4, 2, 16).sum(1)
    return state


forward()
torch.npu.synchronize()
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    out = forward()
graph.replay()
torch.npu.synchronize()
print(out.shape)
