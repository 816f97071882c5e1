import torch
import torch_npu

state = torch.randn(8, 16, dtype=torch.float16, device="npu")
sequences, per_sequence = 4, 2


def forward():
    if state.shape[0] == sequences * per_sequence:
        return state.view(sequences, per_sequence, 16).sum(1)
    return state


forward()
torch.npu.synchronize()
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    out = forward()
graph.replay()
torch.npu.synchronize()
print(out.shape)
