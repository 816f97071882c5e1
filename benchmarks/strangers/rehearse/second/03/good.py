"""A talker whose small predictor has a graph of its own, captured inside the graph of the whole step."""
import torch
import torch_npu


class Predictor(torch.nn.Module):
    """Keeps a captured graph, as it is called many times per token."""

    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(width, width)
        self.graph = None

    def warm_up(self, x):
        self.static_in = x.clone()
        self.layer(self.static_in)
        torch.npu.synchronize()
        self.graph = torch.npu.NPUGraph()
        with torch.npu.graph(self.graph):
            self.static_out = torch.relu(self.layer(self.static_in))

    def forward(self, x):
        if self.graph is None or torch.npu.is_current_stream_capturing():  # the outer graph takes the operators in
            return torch.relu(self.layer(x))
        self.static_in.copy_(x)
        self.graph.replay()
        return self.static_out


with torch.no_grad():
    torch.npu.set_device(0)
    predictor = Predictor(256).npu()
    head = torch.nn.Linear(256, 64).npu()
    static = torch.randn(4, 256).npu()
    predictor.warm_up(static)
    head(predictor(static))
    torch.npu.synchronize()

    step = torch.npu.NPUGraph()
    with torch.npu.graph(step):
        logits = head(predictor(static))
    static.copy_(torch.randn(4, 256))
    step.replay()
    torch.npu.synchronize()
    print("step", tuple(logits.shape), float(logits.sum()))
