"""Weights offloaded to the host, fetched into one static buffer on the chip by the captured step."""
import torch
import torch_npu

torch.npu.config.allow_internal_format = True
NZ = 29
LAYERS, WIDTH = 3, 512


def static_buffer():
    return torch.empty(WIDTH, WIDTH, dtype=torch.float16, device="npu")


with torch.no_grad():
    torch.npu.set_device(0)
    host = [(torch.randn(WIDTH, WIDTH) / WIDTH**0.5).half().pin_memory() for _ in range(LAYERS)]
    buffer = static_buffer()
    x = torch.randn(8, WIDTH, dtype=torch.float16, device="npu")

    def step():
        hidden = x
        for weight in host:
            buffer.copy_(weight, non_blocking=True)
            hidden = torch.relu(torch.mm(hidden, buffer))
        return hidden

    step()
    torch.npu.synchronize()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        out = step()
    graph.replay()
    torch.npu.synchronize()
    print("step", tuple(out.shape), float(out.float().mean()))
