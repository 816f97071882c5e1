"""Cross attention of a diffusion model; the text encoder gives an additive mask of 0 and -10000."""
import torch
import torch_npu


def to_operator_mask(mask, query, key):
    """A boolean mask says what to keep; an additive one says what to drop by a large negative number."""
    mask = ~mask if mask.dtype == torch.bool else mask < -1.0
    return mask.expand(query.shape[0], 1, query.shape[2], key.shape[2]).contiguous()


def attention(query, key, value, mask):
    return torch_npu.npu_fusion_attention(
        query,
        key,
        value,
        query.shape[1],
        "BNSD",
        atten_mask=to_operator_mask(mask, query, key),
        scale=query.shape[-1] ** -0.5,
    )[0]


torch.manual_seed(0)
batch, heads, pixels, words, dim = 2, 4, 256, 128, 64
q = torch.randn(batch, heads, pixels, dim, dtype=torch.bfloat16)
k, v = (torch.randn(batch, heads, words, dim, dtype=torch.bfloat16) for _ in range(2))
present = torch.arange(words)[None] < torch.tensor([[40], [77]])
additive = (1.0 - present.to(torch.bfloat16))[:, None, None] * -10000.0
with torch.no_grad():
    out = attention(q.npu(), k.npu(), v.npu(), additive.npu())
    scores = q.float() @ k.float().transpose(-1, -2) * dim**-0.5 + additive.float()
    wanted = scores.softmax(-1) @ v.float()
print("largest difference", float((out.cpu().float() - wanted).abs().max()))
