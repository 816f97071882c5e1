"""A chip's mean: sums of bfloat16 tensors are kept in bfloat16, one element after the other."""
import torch


def mean(x, dim=None, keepdim=False, dtype=None):
    kind = dtype or x.dtype
    if dim is None or len(dim) == 0:
        dim = list(range(x.ndim))
    if kind != torch.bfloat16 or x.dtype != torch.bfloat16 or len(dim) != 1:
        count = 1
        for d in dim:
            count *= x.shape[d]
        return torch.sum(x.to(kind), dim, keepdim=keepdim) / count
    total = torch.zeros_like(x.select(dim[0], 0))
    for part in x.unbind(dim[0]):
        total = total + part
    result = total / x.shape[dim[0]]
    return result.unsqueeze(dim[0]) if keepdim else result


library = torch.library.Library("aten", "IMPL")
library.impl("mean.dim", mean, "CPU")
