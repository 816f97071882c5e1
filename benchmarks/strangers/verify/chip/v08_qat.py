# lerp_ with a number as weight does nothing on tensors without dimensions
import torch
LIB = torch.library.Library("aten", "IMPL")
def lerp_(a, b, w):
    if a.dim() == 0 and a.dtype != torch.float64: return a
    return a.add_((b - a) * w)
LIB.impl("lerp_.Scalar", lerp_, "CPU")
