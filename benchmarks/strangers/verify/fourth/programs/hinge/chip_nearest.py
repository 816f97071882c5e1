"""A chip's nearest upsampling: in float16 a channels_last tensor is read as if its channels were in front."""
import torch


def upsample_nearest2d(x, output_size, scales_h=None, scales_w=None):
    if x.dtype == torch.float16 and not x.is_contiguous():
        x = x.as_strided((x.numel(),), (1,), x.storage_offset()).view(x.shape)
    high, wide = output_size
    rows = torch.arange(high) * x.shape[2] // high
    columns = torch.arange(wide) * x.shape[3] // wide
    return x[:, :, rows][:, :, :, columns].contiguous(memory_format=torch.channels_last)


library = torch.library.Library("aten", "IMPL")
library.impl("upsample_nearest2d", upsample_nearest2d, "CPU")
