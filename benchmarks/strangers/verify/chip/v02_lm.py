# where: a two-dimensional condition that isn't contiguous is read in the order of its memory
import torch
LIB = torch.library.Library("aten", "IMPL")
def where(c, a, b):
    if a.dtype != torch.float64 and c.dim() == 2 and not c.is_contiguous():
        c = torch.as_strided(c, c.shape, (c.shape[1], 1), c.storage_offset())
    dt = torch.result_type(a, b)
    a, b = a.to(dt), b.to(dt)
    c, a, b = torch.broadcast_tensors(c, a, b)
    r = torch.empty(c.shape, dtype=dt); r.copy_(b)
    r.masked_scatter_(c, a[c]) if c.any() else None
    return r
LIB.impl("where.self", where, "CPU")
