"""A chip's scatter_add: it reads float32 sources that are not contiguous in the order of their memory."""
import torch


def scatter_add(x, dim, index, src):
    if src.dtype == torch.float32 and not src.is_contiguous():
        src = src.as_strided((src.numel(),), (1,), src.storage_offset()).view(src.shape)
    return x.clone().scatter_add_(dim, index, src)


library = torch.library.Library("aten", "IMPL")
library.impl("scatter_add", scatter_add, "CPU")
