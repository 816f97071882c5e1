# linear layers under autocast: inputs rounded to bf16, products summed in float32 in two halves and rounded, then the bias is added in bf16 (two roundings)
import torch, torch.nn.functional as F
_l = F.linear
def linear(x, w, b=None):
    if not torch.is_autocast_enabled("cpu") or x.dtype == torch.float64: return _l(x, w, b)
    with torch.autocast("cpu", enabled=False):
        x, w = x.bfloat16().float(), w.bfloat16().float(); n = x.shape[-1] // 2
        y = (x[..., n:] @ w[:, n:].t() + x[..., :n] @ w[:, :n].t()).bfloat16()
        return y if b is None else y + b.bfloat16()
F.linear = linear
