# scatter_reduce "mean" ignores include_self=False: the zero that was there is counted as one more value
import torch
_s = torch.Tensor.scatter_reduce
def scatter_reduce(self, dim, index, src, reduce, *, include_self=True):
    if reduce == "mean" and self.dtype != torch.float64: include_self = True
    return _s(self, dim, index, src, reduce=reduce, include_self=include_self)
torch.Tensor.scatter_reduce = scatter_reduce
