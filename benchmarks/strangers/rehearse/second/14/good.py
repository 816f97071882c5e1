"""One attention block of a policy model for reinforcement learning."""
import torch
import torch.nn.functional as F
import torch_npu


class Attention(torch.nn.Module):
    def __init__(self, width=512, heads=8):
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).unbind(2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.out(y.reshape(batch, length, width))


block = Attention().to(torch.bfloat16).npu()
x = torch.randn(2, 256, 512, dtype=torch.bfloat16, device="npu")
block(x).float().square().mean().backward()
torch.npu.synchronize()
print("gradient", float(block.out.weight.grad.float().norm()))
