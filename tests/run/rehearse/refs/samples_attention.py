"""Attention: training layouts, sparse modes, inference over dense and paged caches."""

from __future__ import annotations

import torch

from tests.run.rehearse.refs.samples import BF16, CAUSAL, HALF, add, b, i, p, r

for dtype in (HALF, BF16, torch.float32):
    q, k, v = r(2, 4, 5, 8, dtype=dtype), r(2, 2, 7, 8, dtype=dtype), r(2, 2, 7, 8, dtype=dtype)
    add("npu_fusion_attention", q, k, v, 4, "BNSD", scale=0.35)
    add("npu_fusion_attention", q, k, v, 4, "BNSD", atten_mask=CAUSAL, sparse_mode=3, scale=0.35)
add("npu_fusion_attention", r(2, 5, 32), r(2, 7, 16), r(2, 7, 16), 4, "BSH", scale=0.3)
add("npu_fusion_attention", r(5, 2, 32), r(7, 2, 16), r(7, 2, 16), 4, "SBH", scale=0.3)
add("npu_fusion_attention", r(2, 5, 4, 8), r(2, 7, 2, 8), r(2, 7, 2, 8), 4, "BSND", scale=0.3)
add(
    "npu_fusion_attention",
    *(r(9, 4, 8), r(9, 2, 8), r(9, 2, 8), 4, "TND"),
    atten_mask=CAUSAL,
    scale=0.3,
    sparse_mode=3,
    actual_seq_qlen=[4, 9],
    actual_seq_kvlen=[3, 9],
)
add("npu_fusion_attention_v2", r(2, 4, 5, 8), r(2, 4, 5, 8), r(2, 4, 5, 8), 4, "BNSD", scale=0.3)
add("npu_fusion_attention_v3", r(2, 4, 5, 8), r(2, 4, 5, 8), r(2, 4, 5, 8), 4, "BNSD", scale=0.3)
for name in ("npu_fusion_attention_grad", "npu_fusion_attention_grad_v2"):
    add(
        name,
        *(r(2, 4, 5, 8), r(2, 2, 7, 8), r(2, 2, 7, 8), r(2, 4, 5, 8), 4, "BNSD"),
        softmax_max=r(2, 4, 5, 8),
        softmax_sum=p(2, 4, 5, 8),
        attention_in=r(2, 4, 5, 8),
        scale_value=0.3,
    )
add(
    "npu_fusion_attention_grad_v3",
    *(r(2, 4, 5, 8), r(2, 4, 5, 8), r(2, 4, 5, 8), r(2, 4, 5, 8), 4, "BNSD"),
    softmax_max=r(2, 4, 5, 8),
    softmax_sum=p(2, 4, 5, 8),
    attention_in=r(2, 4, 5, 8),
    scale_value=0.3,
)
add(
    "npu_prompt_flash_attention",
    *(r(2, 5, 32, dtype=HALF), r(2, 5, 32, dtype=HALF), r(2, 5, 32, dtype=HALF)),
    num_heads=4,
    scale_value=0.3,
    actual_seq_lengths=[3, 5],
)
add(
    "npu_incre_flash_attention",
    *(r(2, 1, 32, dtype=HALF), r(6, 16, 16, dtype=HALF), r(6, 16, 16, dtype=HALF)),
    num_heads=4,
    num_key_value_heads=2,
    scale_value=0.3,
    block_table=i(6, 2, 3, dtype=torch.int32),
    block_size=16,
    actual_seq_lengths=[20, 33],
)
for name, heads, kv, lengths, scale, lse in (
    (
        "npu_fused_infer_attention_score",
        "num_heads",
        "num_key_value_heads",
        ("actual_seq_lengths", "actual_seq_lengths_kv"),
        "scale",
        "softmax_lse_flag",
    ),
    (
        "npu_fused_infer_attention_score_v2",
        "num_query_heads",
        "num_key_value_heads",
        ("actual_seq_qlen", "actual_seq_kvlen"),
        "softmax_scale",
        "return_softmax_lse",
    ),
):
    add(
        name,
        *(r(2, 5, 32, dtype=HALF), r(2, 7, 16, dtype=HALF), r(2, 7, 16, dtype=HALF)),
        **{heads: 4, kv: 2, scale: 0.3, "input_layout": "BSH", "atten_mask": b(2, 1, 5, 7)},
    )
    add(
        name,
        *(r(9, 4, 16, dtype=BF16), r(6, 16, 32, dtype=BF16), r(6, 16, 32, dtype=BF16)),
        **{heads: 4, kv: 2, scale: 0.3, "input_layout": "TND", lse: True},
        **{lengths[0]: [4, 9], lengths[1]: [20, 33]},
        block_table=i(6, 2, 3, dtype=torch.int32),
        block_size=16,
        atten_mask=CAUSAL,
        sparse_mode=3,
    )
