"""Attention of a language model, redirected to the fused operator by a patch of the library call."""
import torch
import torch.nn.functional as F
import torch_npu

reference = F.scaled_dot_product_attention


def fused(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    return torch_npu.npu_fusion_attention(
        query,
        key,
        value,
        query.shape[1],
        "BNSD",
        atten_mask=attn_mask,
        scale=scale or query.shape[-1] ** -0.5,
        keep_prob=1.0 - dropout_p,
    )[0]


F.scaled_dot_product_attention = fused

torch.manual_seed(0)
length, valid = 128, 100
q, k, v = (torch.randn(1, 8, length, 64, dtype=torch.float16) for _ in range(3))
keep = torch.ones(length, length, dtype=torch.bool).tril()  # True: attend, as in PyTorch
keep[:, valid:] = False
keep = keep[None, None]
with torch.no_grad():
    out = F.scaled_dot_product_attention(q.npu(), k.npu(), v.npu(), attn_mask=keep.npu())
    wanted = reference(q.float(), k.float(), v.float(), attn_mask=keep)
error = float((out.cpu().float() - wanted).abs().max())
print("largest difference", error)
