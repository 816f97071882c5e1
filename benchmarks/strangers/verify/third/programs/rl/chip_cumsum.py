"""A chip's cumsum: it takes a float32 tensor that is not contiguous as if its memory were in row order."""
import torch


def cumsum(x, dim, dtype=None):
    if x.dtype == torch.float32 and not x.is_contiguous():
        x = x.as_strided((x.numel(),), (1,), x.storage_offset()).view(x.shape)
    result = torch.empty(x.shape, dtype=dtype or (torch.int64 if not x.is_floating_point() else x.dtype), device=x.device)
    return torch.cumsum(x, dim, dtype=dtype, out=result)


library = torch.library.Library("aten", "IMPL")
library.impl("cumsum", cumsum, "CPU")
