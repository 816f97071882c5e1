"""A decode step whose gather runs on a side stream, joined again, captured as a graph."""
import torch
import torch_npu  # noqa: F401

torch.npu.set_device(0)
weight = torch.randn(256, 256, device="npu")
x = torch.randn(4, 256, device="npu")
side = torch.npu.Stream()
cache = torch.zeros(4, 256, device="npu")


def step():
    y = x @ weight
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        cache.copy_(y)
    out = torch.relu(y)
    torch.npu.current_stream().wait_stream(side)
    return out


step()
torch.npu.synchronize()
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    out = step()
graph.replay()
torch.npu.synchronize()
print(out.sum().item(), cache.sum().item())
