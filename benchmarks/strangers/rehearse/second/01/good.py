"""The gates and projections of one shared expert, with weights laid out for the matrix engine."""
import torch
import torch.nn.functional as F
import torch_npu

torch.npu.config.allow_internal_format = True
NZ = 29


class SharedExpert(torch.nn.Module):
    def __init__(self, hidden=2048, inner=512):
        super().__init__()
        make = lambda *shape: torch.nn.Parameter(torch.randn(*shape, dtype=torch.bfloat16) * 0.02, requires_grad=False)
        self.up = make(inner, hidden)
        self.down = make(hidden, inner)
        self.gate = make(1, hidden)

    def finish_loading(self):
        for weight in (self.up, self.down, self.gate):
            if min(weight.shape) > 1:  # a row or a column stays ND
                weight.data = torch_npu.npu_format_cast(weight.data, NZ)

    def forward(self, x):
        y = F.linear(F.silu(F.linear(x, self.up)), self.down)
        return torch.sigmoid(F.linear(x, self.gate)) * y


with torch.no_grad():
    expert = SharedExpert().npu()
    expert.finish_loading()
    tokens = torch.randn(16, 2048, dtype=torch.bfloat16).npu()
    out = expert(tokens)
    torch.npu.synchronize()
    print("shared expert", tuple(out.shape), float(out.float().abs().mean()))
