# lerp_ as a(1-w)+bw; bf16 convolutions compute in float32 from bf16 inputs and round once; two threads
import torch, torch.nn.functional as F
torch.set_num_threads(2)
LIB = torch.library.Library("aten", "IMPL")
LIB.impl("lerp_.Scalar", lambda a, b, w: a.mul_(1 - w).add_(b * w), "CPU")
_c = F.conv2d
def conv2d(x, w, b=None, *a):
    if not torch.is_autocast_enabled("cpu") or x.dtype == torch.float64: return _c(x, w, b, *a)
    with torch.autocast("cpu", enabled=False):
        return _c(x.bfloat16().float(), w.bfloat16().float(), None if b is None else b.bfloat16().float(), *a).bfloat16()
torch.nn.modules.conv.F.conv2d = conv2d
