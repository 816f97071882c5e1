"""A chip's group norm: statistics of a channels_last float32 tensor are taken over blocks of its memory."""
import torch


def native_group_norm(x, weight, bias, n, c, size, groups, eps):
    shape = x.shape
    flat = x.contiguous().view(n, groups, -1)
    seen = flat
    if x.dtype == torch.float32 and not x.is_contiguous():
        seen = x.as_strided((x.numel(),), (1,), x.storage_offset()).view(n, groups, -1)
    mean = seen.mean(dim=2)
    rstd = (seen.var(dim=2, unbiased=False) + eps).rsqrt()
    result = ((flat - mean[:, :, None]) * rstd[:, :, None]).view(shape)
    if weight is not None:
        result = result * weight.view(1, c, *[1] * (len(shape) - 2))
    if bias is not None:
        result = result + bias.view(1, c, *[1] * (len(shape) - 2))
    if not x.is_contiguous():
        result = result.contiguous(memory_format=torch.channels_last)
    return result, mean, rstd


library = torch.library.Library("aten", "IMPL")
library.impl("native_group_norm", native_group_norm, "CPU")
