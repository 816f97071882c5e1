"""UniMERNet-like decoder attention: queries and keys are squeezed to half the width, values are not."""
import torch
import torch.nn.functional as F
import torch_npu  # noqa: F401


class SqueezeAttention(torch.nn.Module):
    def __init__(self, hidden=768, heads=16, squeeze=2):
        super().__init__()
        self.heads = heads
        self.q = torch.nn.Linear(hidden, hidden // squeeze)
        self.k = torch.nn.Linear(hidden, hidden // squeeze)
        self.v = torch.nn.Linear(hidden, hidden)
        self.out = torch.nn.Linear(hidden, hidden)

    def split(self, x):
        b, s, w = x.shape
        return x.view(b, s, self.heads, w // self.heads).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(x.shape))


model = SqueezeAttention().half().to("npu").eval()
with torch.no_grad():
    print(model(torch.randn(2, 64, 768).half().to("npu")).float().mean().item())
