"""A chip's sine: large float32 angles are brought back by a pi of four digits."""
import torch


def sine(x):
    if x.dtype != torch.float32:
        x = x.float() if not x.is_floating_point() else x
        return torch.cos(x - 1.5707963267948966)
    turns = torch.round(x / 6.283)
    return torch.cos(x - turns * 6.283 - 1.5707963267948966)


library = torch.library.Library("aten", "IMPL")
library.impl("sin", sine, "CPU")
