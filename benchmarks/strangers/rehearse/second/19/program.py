"""A linear layer of a diffusion model whose checkpoint holds int8 weights and one scale per output."""
import torch
import torch.nn.functional as F
import torch_npu


class QuantLinear(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8))
        self.register_buffer("scale", torch.full((outputs,), 1e-3, dtype=torch.bfloat16))

    def forward(self, x):
        return F.linear(x, self.weight) * self.scale


torch.manual_seed(0)
layer = QuantLinear(512, 1024).npu()
x = torch.randn(64, 512, dtype=torch.bfloat16).npu()
with torch.no_grad():
    out = layer(x)
torch.npu.synchronize()
print(tuple(out.shape), out.dtype, float(out.float().abs().mean()))
