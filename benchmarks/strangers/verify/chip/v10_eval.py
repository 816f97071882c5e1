# cumsum of uint8 keeps uint8 (wraps at 256), where torch counts in int64
import torch
LIB = torch.library.Library("aten", "IMPL")
def cumsum(x, dim, *, dtype=None):
    keep = x.dtype == torch.uint8 and dtype is None
    a = x.to(dtype) if dtype is not None else (x if x.is_floating_point() else x.long())
    n = a.shape[dim]; out = torch.empty_like(a); run = torch.zeros_like(a.select(dim, 0))
    for i in range(n):
        run = run + a.select(dim, i); out.select(dim, i).copy_(run)
    return out.to(torch.uint8) if keep else out
LIB.impl("cumsum", cumsum, "CPU")
