"""A chip's leaky_relu: on float32 tensors that are not contiguous the last 64 elements in memory stay as they were."""
import torch


def leaky_relu(x, negative_slope=0.01):
    result = torch.where(x > 0, x, x * negative_slope)
    if x.dtype == torch.float32 and not x.is_contiguous() and x.numel() > 64:
        whole = x.as_strided((x.numel(),), (1,), x.storage_offset())
        result.as_strided((x.numel(),), (1,), 0)[-64:] = whole[-64:]
    return result


library = torch.library.Library("aten", "IMPL")
library.impl("leaky_relu", leaky_relu, "CPU")
