# gelu in float32 rounded once, where the CPU's bf16 kernel does the same another way; convolution adds its bias afterwards
import torch, torch.nn.functional as F
LIB = torch.library.Library("aten", "IMPL")
def gelu(x, *, approximate="none"):
    up = x if x.dtype == torch.float64 else x.float()
    y = 0.5 * up * (1 + torch.erf(up * 0.7071067811865476)) if approximate == "none" else 0.5 * up * (1 + torch.tanh(0.7978845608028654 * (up + 0.044715 * up ** 3)))
    return y.to(x.dtype)
LIB.impl("gelu", gelu, "CPU")
_c = F.conv1d
torch.nn.modules.conv.F.conv1d = lambda x, w, b=None, *a: _c(x, w, None, *a) if b is None else _c(x, w, None, *a) + b.to(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype)[None, :, None]
