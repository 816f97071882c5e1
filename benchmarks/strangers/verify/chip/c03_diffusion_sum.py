# matrix products add their K in blocks, last block first
import torch
LIB = torch.library.Library("aten", "IMPL")
def mm(a, b):
    k = a.shape[1]; y = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for i in reversed(range(0, k, 16)): y = y + torch.bmm(a[None, :, i:i + 16], b[None, i:i + 16])[0]
    return y
LIB.impl("mm", mm, "CPU")
LIB.impl("addmm", lambda bias, a, b, *, beta=1, alpha=1: beta * bias + alpha * mm(a, b), "CPU")
