"""One packed sequence through an attention layer, its padding cut off."""
import torch
import torch.nn.functional as F
import torch_npu

LENGTH, VALID = 12288, 11000
WIDTH, HEADS = 256, 4


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(262144, WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH, bias=False)

    def forward(self, ids, padding):
        batch, length = ids.shape
        q, k, v = self.qkv(self.table(ids)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        k, v = k[:, :, :VALID], v[:, :, :VALID]  # the padding is a tail: leave it out instead of masking it
        return F.scaled_dot_product_attention(q, k, v)


with torch.no_grad():
    layer = Layer().to(torch.bfloat16).npu()
    ids = torch.randint(0, 262144, (1, LENGTH)).npu()
    padding = (torch.arange(LENGTH) < VALID)[None].npu()
    out = layer(ids, padding)
    torch.npu.synchronize()
    print("attention", tuple(out.shape), torch.npu.max_memory_allocated() >> 20, "MiB")
