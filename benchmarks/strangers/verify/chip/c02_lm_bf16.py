# attention in blocks of the keys with a running maximum (as flash attention does), in float32 inside
import torch, torch.nn.functional as F
def sdpa(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    up = torch.float64 if q.dtype == torch.float64 else torch.float32
    s = scale or q.shape[-1] ** -0.5; t = k.shape[-2]; qf = q.to(up) * s
    m = l = o = None
    for a in range(0, t, 16):
        x = qf @ k[..., a:a + 16, :].to(up).transpose(-1, -2)
        if is_causal: x = x.masked_fill(torch.arange(a, a + x.shape[-1])[None] > torch.arange(q.shape[-2])[:, None], -1e30)
        n = x.amax(-1, keepdim=True) if m is None else torch.maximum(m, x.amax(-1, keepdim=True))
        p = (x - n).exp(); w = p @ v[..., a:a + 16, :].to(up)
        if m is None: l, o = p.sum(-1, keepdim=True), w
        else: c = (m - n).exp(); l, o = l * c + p.sum(-1, keepdim=True), o * c + w
        m = n
    return (o / l).to(q.dtype)
F.scaled_dot_product_attention = sdpa
