"""A chip's softplus: a float32 tensor that is not contiguous is taken in the order of its memory."""
import torch


def softplus(x, beta=1, threshold=20):
    seen = x
    if x.dtype == torch.float32 and not x.is_contiguous():
        seen = x.as_strided((x.numel(),), (1,), x.storage_offset()).view(x.shape)
    return torch.where(seen * beta > threshold, seen, torch.log1p(torch.exp(seen * beta)) / beta)


library = torch.library.Library("aten", "IMPL")
library.impl("softplus", softplus, "CPU")
